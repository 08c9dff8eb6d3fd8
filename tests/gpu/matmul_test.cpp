// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/matmul.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cmath>

#include "gpu_test.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuMatmul : public GpuTest {};
class GpuLinear : public GpuTest {};

/// Sizes of one, primes, multiples of 8, and more than a tile.
const std::vector<std::array<Dim, 3>> kSizes = {{1, 1, 1},     {2, 3, 4},      {7, 13, 5},
                                                {17, 1, 31},   {64, 64, 64},   {72, 40, 24},
                                                {33, 65, 257}, {256, 136, 520}};

/// What operands are stored in, and how GEMMs of f32 are computed.
struct Precision {
  DType dtype;
  bool tf32 = false;
  [[nodiscard]] std::string str() const { return tf32 ? "tf32" : std::string(name_of(dtype)); }
  /// tf32 has the digits of f16.
  [[nodiscard]] double slack() const {
    return tf32 ? tolerance(DType::f16) / tolerance(DType::f32) : 1.0;
  }
};
const std::vector<Precision> kPrecisions = {
    {DType::f32}, {DType::bf16}, {DType::f16}, {DType::f32, true}};

/// The call with pinned algorithms or with timed ones.
Problem::Call in_mode(const Problem::Call& call, const Precision& precision, bool pinned) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_tf32(precision.tf32);
    ctx.set_deterministic(pinned);
    call(ctx, v);
  };
}

/// Standard normals in the dtype, divided so that sums over K are of order one.
Tensor operand(DType dtype, const Shape& shape, std::uint64_t seed, Dim K = 1) {
  return random_tensor(dtype, shape, seed, 1.0 / std::sqrt(static_cast<double>(K)));
}

/// What a GEMM is added to; poison if it is overwritten.
Tensor target(DType dtype, const Shape& shape, std::uint64_t seed, Accumulate accumulate) {
  return accumulate == Accumulate::yes ? operand(dtype, shape, seed) : poisoned(dtype, shape);
}

/// Runs with the pinned algorithms, which must repeat their bits.
void expect_pinned(const Problem& problem, const Problem::Call& call, const std::string& what,
                   const Precision& precision) {
  problem.expect_match(in_mode(call, precision, true), what + ", deterministic, " + precision.str(),
                       precision.slack());
}

/// Runs with the pinned algorithms and with the timed ones.
void expect_both_modes(const Problem& problem, const Problem::Call& call, const std::string& what,
                       const std::vector<std::size_t>& outputs, const Precision& precision) {
  expect_pinned(problem, call, what, precision);
  const auto oracle = problem.on_oracle(call);
  const auto timed = problem.on_gpu(in_mode(call, precision, false));
  for (const std::size_t i : outputs) {
    if (oracle[i].view().numel() == 0) continue;
    const double expected =
        std::max(tolerance(precision.dtype), tolerance(timed[i].view().dtype()));
    EXPECT_LE(relative_difference(timed[i].view(), oracle[i].view()), precision.slack() * expected)
        << what << ", timed, in " << precision.str() << ", operand " << i;
  }
}

Shape stored(Dim rows, Dim columns, Trans trans) {
  return trans == Trans::no ? Shape{rows, columns} : Shape{columns, rows};
}

TEST_F(GpuMatmul, AllLayoutsDtypesAndAwkwardSizes) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const auto& [M, N, K] : kSizes) {
      for (const auto& [trans_a, trans_b] : {std::pair{Trans::no, Trans::no},
                                             {Trans::no, Trans::yes},
                                             {Trans::yes, Trans::no},
                                             {Trans::yes, Trans::yes}}) {
        Problem problem(dtype);
        problem.input(operand(dtype, stored(M, K, trans_a), 1, K))
            .input(operand(dtype, stored(K, N, trans_b), 2))
            .output(dtype, {M, N});
        expect_pinned(
            problem,
            [&, a = trans_a, b = trans_b](Context& ctx, const Views& v) {
              matmul(ctx, v[0], a, v[1], b, Accumulate::no, v[2]);
            },
            "matmul " + std::to_string(M) + " " + std::to_string(N) + " " + std::to_string(K),
            precision);
      }
    }
  }
}

TEST_F(GpuMatmul, TimedAlgorithmsAndAccumulation) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const DType out : {dtype, DType::f32}) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        Problem problem(dtype);
        problem.input(operand(dtype, {129, 264}, 1, 264))
            .input(operand(dtype, {264, 72}, 2))
            .in_out(target(out, {129, 72}, 3, accumulate));
        expect_both_modes(
            problem,
            [&](Context& ctx, const Views& v) {
              matmul(ctx, v[0], Trans::no, v[1], Trans::no, accumulate, v[2]);
            },
            "matmul", {2}, precision);
      }
    }
  }
}

TEST_F(GpuMatmul, ColumnsOfWiderMatrices) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const DType out : {dtype, DType::f32}) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        Problem problem(dtype);
        problem.input(operand(dtype, {129, 264}, 1, 64))
            .input(operand(dtype, {64, 72}, 2))
            .in_out(operand(out, {129, 144}, 3))
            .in_out(operand(out, {64, 144}, 4));
        expect_both_modes(
            problem,
            [&](Context& ctx, const Views& v) {
              matmul_columns(ctx, {v[0], 16, 64}, {v[1], 8, 48}, 0.5F, accumulate, {v[2], 32, 48});
              matmul_columns(ctx, {v[0], 100, 64, Trans::yes}, {v[0], 3, 72}, 2, accumulate,
                             {v[3], 64, 72});
            },
            "matmul_columns", {2, 3}, precision);
      }
    }
  }
}

TEST_F(GpuMatmul, EmptySizesAreLegal) {
  Problem problem(DType::bf16);
  problem.input(Tensor(Device::cpu, DType::bf16, {2, 0}))
      .input(Tensor(Device::cpu, DType::bf16, {0, 3}))
      .output(DType::bf16, {2, 3})
      .output(DType::bf16, {0, 0})
      .in_out(operand(DType::f32, {2, 3}, 1));
  problem.expect_match(
      [](Context& ctx, const Views& v) {
        matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::no, v[2]);
        matmul(ctx, v[1], Trans::no, v[1], Trans::yes, Accumulate::no, v[3]);
        matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::yes, v[4]);
      },
      "empty");
}

/// The error of a long f32 GEMM against the oracle.
double error_of_f32(bool tf32) {
  Problem problem(DType::f32);
  problem.input(operand(DType::f32, {64, 4096}, 1, 4096))
      .input(operand(DType::f32, {4096, 64}, 2))
      .output(DType::f32, {64, 64});
  const auto call = [&](Context& ctx, const Views& v) {
    ctx.set_tf32(tf32);
    matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::no, v[2]);
  };
  return relative_difference(problem.on_gpu(call)[2].view(), problem.on_oracle(call)[2].view());
}

TEST_F(GpuMatmul, F32UsesTf32OnlyIfAsked) {
  EXPECT_LT(error_of_f32(false), 5e-6);
  EXPECT_GT(error_of_f32(true), 2e-5);
  EXPECT_LT(error_of_f32(true), 5e-3);
}

TEST_F(GpuMatmul, DoubleIsRefused) {
  Context ctx(Device::cuda, 0);
  Tensor a(Device::cuda, DType::f64, {2, 2});
  Tensor c(Device::cuda, DType::f64, {2, 2});
  EXPECT_THROW(matmul(ctx, a.view(), Trans::no, a.view(), Trans::no, Accumulate::no, c.view()),
               Error);
}

TEST_F(GpuMatmul, SecondCallCanBeCapturedAndReplayed) {
  Context ctx(Device::cuda, 0);
  const Tensor host_a = operand(DType::bf16, {64, 96}, 1, 96);
  const Tensor host_b = operand(DType::bf16, {96, 80}, 2);
  Tensor a(Device::cuda, DType::bf16, {64, 96});
  Tensor b(Device::cuda, DType::bf16, {96, 80});
  Tensor c(Device::cuda, DType::f32, {64, 80});
  copy(ctx, host_a.view(), a.view());
  copy(ctx, host_b.view(), b.view());
  const auto gemm = [&](Accumulate accumulate) {
    matmul(ctx, a.view(), Trans::no, b.view(), Trans::no, accumulate, c.view());
  };
  gemm(Accumulate::yes);
  gemm(Accumulate::no);
  synchronize(ctx);
  Tensor once(Device::cpu, DType::f32, {64, 80});
  copy(ctx, c.view(), once.view());
  synchronize(ctx);

  cudaStream_t stream = ctx.stream().cuda();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  gemm(Accumulate::yes);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  Tensor thrice(Device::cpu, DType::f32, {64, 80});
  copy(ctx, c.view(), thrice.view());
  synchronize(ctx);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);

  auto expected = to_doubles(once.view());
  for (double& value : expected) value *= 3;
  EXPECT_LE(relative_difference(thrice.view(), tensor_of(DType::f64, {64, 80}, expected).view()),
            2e-5);
}

TEST_F(GpuLinear, ForwardWithAndWithoutBias) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const auto& [rows, M, K] : kSizes) {
      for (const bool with_bias : {false, true}) {
        const auto with_operands = [&, rows = rows, M = M, K = K] {
          Problem problem(dtype);
          problem.input(operand(dtype, {rows, K}, 1, K)).input(operand(dtype, {M, K}, 2));
          with_bias ? problem.input(operand(dtype, {M}, 3)) : problem.absent();
          return problem;
        };
        expect_both_modes(
            with_operands().output(dtype, {rows, M}),
            [](Context& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], v[2], v[3]); },
            "linear_forward", {3}, precision);
        expect_both_modes(
            with_operands().in_out(operand(dtype, {rows, M}, 4)),
            [](Context& ctx, const Views& v) { linear_forward_add(ctx, v[0], v[1], v[2], v[3]); },
            "linear_forward_add", {3}, precision);
      }
    }
  }
}

TEST_F(GpuLinear, VocabularyThatNoTileDivides) {
  constexpr Dim kVocabulary = 50257;
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    Problem problem(dtype);
    problem.input(operand(dtype, {9, 64}, 1, 64))
        .input(operand(dtype, {kVocabulary, 64}, 2))
        .output(dtype, {9, kVocabulary})
        .input(operand(dtype, {9, kVocabulary}, 3, kVocabulary))
        .output(dtype, {9, 64})
        .output(DType::f32, {kVocabulary, 64});
    expect_both_modes(
        problem,
        [](Context& ctx, const Views& v) {
          linear_forward(ctx, v[0], v[1], {}, v[2]);
          linear_backward_input(ctx, v[3], v[1], Accumulate::no, v[4]);
          linear_backward_weight(ctx, v[3], v[0], Accumulate::no, v[5], {});
        },
        "vocabulary", {2, 4, 5}, precision);
  }
}

TEST_F(GpuLinear, ActivationForward) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const Activation activation :
         {Activation::gelu_tanh, Activation::gelu, Activation::silu}) {
      for (const Dim M : {128, 72, 37}) {
        for (const bool with_bias : {false, true}) {
          Problem problem(dtype);
          problem.input(operand(dtype, {67, 80}, 1, 80)).input(operand(dtype, {M, 80}, 2));
          with_bias ? problem.input(operand(dtype, {M}, 3)) : problem.absent();
          problem.output(dtype, {67, M}).output(dtype, {67, M});
          expect_both_modes(
              problem,
              [&](Context& ctx, const Views& v) {
                linear_activation_forward(ctx, v[0], v[1], v[2], activation, v[3], v[4]);
              },
              "linear_activation_forward", {3, 4}, precision);
        }
      }
    }
  }
}

TEST_F(GpuLinear, TheKeptInputOfAnActivationThatIsNotFusedGivesTheSameBits) {
  for (const DType dtype : kGpuTypes) {
    for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared}) {
      if (activation == Activation::gelu_tanh && dtype != DType::f32) continue;
      for (const Dim M : {128, 37}) {
        Problem problem(dtype);
        problem.input(operand(dtype, {67, 80}, 1, 80)).input(operand(dtype, {M, 80}, 2));
        problem.output(dtype, {67, M}).output(dtype, {67, M}).output(dtype, {67, M});
        const auto found = problem.on_gpu([&](Context& ctx, const Views& v) {
          linear_activation_forward(ctx, v[0], v[1], {}, activation, v[2], v[3]);
          activation_forward(ctx, activation, v[2], v[4]);
        });
        EXPECT_TRUE(same_bits(found[3].view(), found[4].view())) << static_cast<int>(activation);
      }
    }
  }
}

TEST_F(GpuLinear, BackwardInput) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      for (const auto& [rows, M, K] : kSizes) {
        Problem problem(dtype);
        problem.input(operand(dtype, {rows, M}, 1, M))
            .input(operand(dtype, {M, K}, 2))
            .in_out(target(dtype, {rows, K}, 3, accumulate));
        expect_both_modes(
            problem,
            [&](Context& ctx, const Views& v) {
              linear_backward_input(ctx, v[0], v[1], accumulate, v[2]);
            },
            "linear_backward_input", {2}, precision);
      }
    }
  }
}

TEST_F(GpuLinear, ActivationBackwardInputBesideAndInPlaceOfPre) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const Activation activation : {Activation::gelu_tanh, Activation::relu_squared}) {
      for (const Dim K : {256, 72, 37}) {
        Problem problem(dtype);
        problem.input(operand(dtype, {300, 40}, 1, 40))
            .input(operand(dtype, {40, K}, 2))
            .input(operand(dtype, {300, K}, 3))
            .output(dtype, {300, K})
            .in_out(operand(dtype, {300, K}, 3));
        expect_both_modes(
            problem,
            [&](Context& ctx, const Views& v) {
              linear_activation_backward_input(ctx, v[0], v[1], v[2], activation, {v[3]});
              linear_activation_backward_input(ctx, v[0], v[1], v[4], activation, {v[4]});
            },
            "linear_activation_backward_input", {3, 4}, precision);
      }
    }
  }
}

/// Rows, columns of dy and of pre: tiles that are cut off below, on the right and in depth, an odd
/// number of them below one another, more of them than multiprocessors, and sums over more depth
/// than is in shared memory at once.
const std::vector<std::array<Dim, 3>> kTiledSizes = {
    {1000, 200, 1608}, {1100, 64, 1544}, {130, 72, 6152}, {2049, 136, 3072}, {1000, 1000, 1608}};

/// Hopper has kernels for many tiles of 16-bit elements.
TEST_F(GpuLinear, ActivationForwardInTiles) {
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const auto& [rows, K, M] : kTiledSizes) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, K}, 1, K))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {M}, 3));
      for (int i = 0; i < 4; ++i) problem.output(dtype, {rows, M});
      expect_both_modes(
          problem,
          [](Context& ctx, const Views& v) {
            linear_activation_forward(ctx, v[0], v[1], v[2], Activation::gelu_tanh, v[3], v[4]);
            linear_activation_forward(ctx, v[0], v[1], {}, Activation::gelu_tanh, v[5], v[6]);
          },
          "linear_activation_forward in tiles", {3, 4, 5, 6}, precision);
    }
  }
}

TEST_F(GpuLinear, ActivationForwardInTilesHasTheBitsOfActivationForward) {
  const auto& [rows, K, M] = kTiledSizes[0];
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared}) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, K}, 1, K))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {M}, 3));
      for (int i = 0; i < 3; ++i) problem.output(dtype, {rows, M});
      const auto found = problem.on_gpu([&](Context& ctx, const Views& v) {
        linear_activation_forward(ctx, v[0], v[1], v[2], activation, v[3], v[4]);
        activation_forward(ctx, activation, v[3], v[5]);
      });
      EXPECT_TRUE(same_bits(found[4].view(), found[5].view())) << name_of(dtype);
    }
  }
}

TEST_F(GpuLinear, ActivationBackwardInputInTilesWithItsBias) {
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const auto& [rows, M, K] : kTiledSizes) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, M}, 1, M))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {rows, K}, 3))
          .output(dtype, {rows, K})
          .in_out(operand(dtype, {rows, K}, 3))
          .output(DType::f32, {K})
          .in_out(operand(DType::f32, {K}, 4));
      expect_both_modes(
          problem,
          [](Context& ctx, const Views& v) {
            linear_activation_backward_input(ctx, v[0], v[1], v[2], Activation::gelu_tanh,
                                             {v[3], v[5]});
            linear_activation_backward_input(ctx, v[0], v[1], v[4], Activation::gelu_tanh,
                                             {v[4], v[6], Accumulate::yes});
          },
          "linear_activation_backward_input in tiles", {3, 4, 5, 6}, precision);
    }
  }
}

TEST_F(GpuLinear, ActivationBackwardInputInTilesTakesEveryActivation) {
  const auto& [rows, M, K] = kTiledSizes[0];
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const Activation activation :
         {Activation::gelu, Activation::relu, Activation::silu, Activation::relu_squared}) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, M}, 1, M))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {rows, K}, 3))
          .output(dtype, {rows, K})
          .in_out(operand(dtype, {rows, K}, 3));
      expect_both_modes(
          problem,
          [&](Context& ctx, const Views& v) {
            linear_activation_backward_input(ctx, v[0], v[1], v[2], activation, {v[3]});
            linear_activation_backward_input(ctx, v[0], v[1], v[4], activation, {v[4]});
          },
          "linear_activation_backward_input in tiles", {3, 4}, precision);
    }
  }
}

TEST_F(GpuLinear, BackwardWeightAndBias) {
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      for (const bool with_bias : {false, true}) {
        for (const auto& [rows, M, K] : kSizes) {
          Problem problem(dtype);
          problem.input(operand(dtype, {rows, M}, 1, rows))
              .input(operand(dtype, {rows, K}, 2))
              .in_out(target(DType::f32, {M, K}, 3, accumulate));
          with_bias ? problem.in_out(target(DType::f32, {M}, 4, accumulate)) : problem.absent();
          expect_both_modes(
              problem,
              [&](Context& ctx, const Views& v) {
                linear_backward_weight(ctx, v[0], v[1], accumulate, v[2], v[3]);
              },
              "linear_backward_weight",
              with_bias ? std::vector<std::size_t>{2, 3} : std::vector<std::size_t>{2}, precision);
        }
      }
    }
  }
}

/// Of a frozen weight.
TEST_F(GpuLinear, TheGradientOfABiasAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem problem(dtype);
    problem.input(operand(dtype, {1024, 64}, 1, 1024)).in_out(operand(DType::f32, {64}, 2));
    const auto call = [](Context& ctx, const Views& v) {
      linear_backward_weight(ctx, v[0], {}, Accumulate::yes, {}, v[1]);
    };
    const auto oracle = problem.on_oracle(call);
    const auto found = problem.on_gpu(call);
    EXPECT_LE(relative_difference(found[1].view(), oracle[1].view()), tolerance(DType::f32))
        << name_of(dtype);
  }
}

TEST_F(GpuLinear, WeightGradientsOfHalfOperandsHaveTheDigitsOfF32) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Problem problem(dtype);
    problem.input(operand(dtype, {1024, 64}, 1, 1024))
        .input(operand(dtype, {1024, 96}, 2))
        .in_out(operand(DType::f32, {64, 96}, 3))
        .in_out(operand(DType::f32, {64}, 4));
    const auto call = [](Context& ctx, const Views& v) {
      linear_backward_weight(ctx, v[0], v[1], Accumulate::yes, v[2], v[3]);
    };
    const auto oracle = problem.on_oracle(call);
    const auto found = problem.on_gpu(call);
    for (const std::size_t i : {2, 3}) {
      EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()), tolerance(DType::f32))
          << name_of(dtype) << ", operand " << i;
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
