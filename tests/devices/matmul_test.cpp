// SPDX-License-Identifier: Apache-2.0
#include "matmul_problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class Matmul : public DevicesTest {};
class Linear : public DevicesTest {};

Shape stored(Dim rows, Dim columns, Trans trans) {
  return trans == Trans::no ? Shape{rows, columns} : Shape{columns, rows};
}

TEST_F(Matmul, AllLayoutsDtypesAndAwkwardSizes) {
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

TEST_F(Matmul, TimedAlgorithmsAndAccumulation) {
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

TEST_F(Matmul, ColumnsOfWiderMatrices) {
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

TEST_F(Matmul, EmptySizesAreLegal) {
  for (const DType dtype : compute_types()) {
    Problem problem(dtype);
    problem.input(Tensor(Device::cpu, dtype, {2, 0}))
        .input(Tensor(Device::cpu, dtype, {0, 3}))
        .output(dtype, {2, 3})
        .output(dtype, {0, 0})
        .in_out(operand(DType::f32, {2, 3}, 1));
    problem.expect_match(
        [](Context& ctx, const Views& v) {
          matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::no, v[2]);
          matmul(ctx, v[1], Trans::no, v[1], Trans::yes, Accumulate::no, v[3]);
          matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::yes, v[4]);
        },
        "empty");
  }
}

TEST_F(Linear, ForwardWithAndWithoutBias) {
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

TEST_F(Linear, VocabularyThatNoTileDivides) {
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

TEST_F(Linear, ActivationForward) {
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

TEST_F(Linear, TheKeptInputOfAnActivationThatIsNotFusedGivesTheSameBits) {
  for (const DType dtype : compute_types()) {
    for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared}) {
      for (const Dim M : {128, 37}) {
        Problem problem(dtype);
        problem.input(operand(dtype, {67, 80}, 1, 80)).input(operand(dtype, {M, 80}, 2));
        for (int i = 0; i < 3; ++i) problem.output(dtype, {67, M});
        if (activation == Activation::gelu_tanh && dtype != DType::f32) {
          problem.only_on(Device::cpu);  // GPUs fuse it
        }
        const auto call = [&](Context& ctx, const Views& v) {
          linear_activation_forward(ctx, v[0], v[1], {}, activation, v[2], v[3]);
          activation_forward(ctx, activation, v[2], v[4]);
        };
        problem.on_each(call, [&](const Results& found) {
          EXPECT_TRUE(same_bits(found[3].view(), found[4].view())) << static_cast<int>(activation);
        });
      }
    }
  }
}

TEST_F(Linear, BackwardInput) {
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

TEST_F(Linear, ActivationBackwardInputBesideAndInPlaceOfPre) {
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

TEST_F(Linear, BackwardWeightAndBias) {
  auto sizes = kSizes;
  sizes.insert(sizes.end(), {{1000, 72, 5}, {4099, 257, 5}, {70, 2048, 5}});
  for (const Precision& precision : kPrecisions) {
    const DType dtype = precision.dtype;
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      for (const bool with_bias : {false, true}) {
        for (const auto& [rows, M, K] : sizes) {
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

/// A frozen weight has no gradient; its bias may have one.
TEST_F(Linear, TheGradientOfABiasAlone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem problem(dtype);
    problem.input(operand(dtype, {1024, 64}, 1, 1024)).in_out(operand(DType::f32, {64}, 2));
    const auto call = [](Context& ctx, const Views& v) {
      linear_backward_weight(ctx, v[0], {}, Accumulate::yes, {}, v[1]);
    };
    const auto oracle = problem.on_oracle(call);
    problem.on_each(call, [&](const Results& found) {
      EXPECT_LE(relative_difference(found[1].view(), oracle[1].view()), tolerance(DType::f32));
    });
  }
}

TEST_F(Linear, WeightGradientsOfHalfOperandsHaveTheDigitsOfF32) {
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
    problem.on_each(call, [&](const Results& found) {
      for (const std::size_t i : {2, 3}) {
        EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()), tolerance(DType::f32))
            << "operand " << i;
      }
    });
  }
}

}  // namespace
}  // namespace hyperslab::ops
