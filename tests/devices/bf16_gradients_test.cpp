// SPDX-License-Identifier: Apache-2.0
// Gradients of parameters in bf16 (precision.gradients) against the oracle, by every op that writes
// or reads one. Sums inside the ops are in f32: only the result is rounded.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/classes.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/head_norm.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/muon.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr DType kBf16 = DType::bf16;

class Bf16Gradients : public DevicesTest {
 protected:
  static constexpr std::array kBoth = {Accumulate::no, Accumulate::yes};
  static Tensor target(const Shape& shape, std::uint64_t seed, Accumulate accumulate) {
    return accumulate == Accumulate::yes ? random_tensor(kBf16, shape, seed)
                                         : poisoned(kBf16, shape);
  }
};

TEST_F(Bf16Gradients, OfLinearLayers) {
  for (const Accumulate accumulate : kBoth) {
    for (const auto& [rows, M, K] :
         std::vector<std::array<Dim, 3>>{{1, 1, 1}, {7, 13, 5}, {130, 96, 72}, {1024, 256, 128}}) {
      Problem problem(kBf16);
      problem.input(random_tensor(kBf16, {rows, M}, 1, 1.0 / static_cast<double>(rows)))
          .input(random_tensor(kBf16, {rows, K}, 2))
          .in_out(target({M, K}, 3, accumulate), 0.1)
          .in_out(target({M}, 4, accumulate), 0.1);
      problem.expect_match(
          [=](Context& ctx, const Views& v) {
            linear_backward_weight(ctx, v[0], v[1], accumulate, v[2], v[3]);
          },
          "linear_backward_weight");
    }
  }
}

/// Whatever algorithm is the fastest, parts of a sum over many rows are added up in f32.
TEST_F(Bf16Gradients, OfManyRowsAreRoundedOnce) {
  for (const auto& [rows, M, K] :
       std::vector<std::array<Dim, 3>>{{8192, 64, 96}, {32768, 128, 64}, {4096, 768, 768}}) {
    Problem problem(kBf16);
    problem.input(random_tensor(kBf16, {rows, M}, 1))
        .input(random_tensor(kBf16, {rows, K}, 2))
        .output(kBf16, {M, K})
        .output(DType::f32, {M, K});
    const auto call = [](Context& ctx, const Views& v) {
      ctx.set_deterministic(false);
      linear_backward_weight(ctx, v[0], v[1], Accumulate::no, v[2], {});
      linear_backward_weight(ctx, v[0], v[1], Accumulate::no, v[3], {});
    };
    const double sums = std::sqrt(static_cast<double>(rows));
    const auto check = [&](const Results& found) {
      const auto narrow = to_doubles(found[2].view());
      const auto wide = to_doubles(found[3].view());
      for (std::size_t i = 0; i < wide.size(); ++i) {
        ASSERT_NEAR(narrow[i], wide[i], std::abs(wide[i]) * 0x1p-8 + 1e-5 * sums) << i;
      }
    };
    problem.on_each(call, check, {0});
  }
}

/// By a product of our own, whose columns are summed in it.
TEST_F(Bf16Gradients, OfABiasBeforeAnActivation) {
  for (const Accumulate accumulate : kBoth) {
    for (const auto& [rows, M, K] :
         std::vector<std::array<Dim, 3>>{{9, 24, 40}, {300, 192, 256}, {1024, 256, 512}}) {
      Problem problem(kBf16);
      problem.input(random_tensor(kBf16, {rows, M}, 1))
          .input(random_tensor(kBf16, {M, K}, 2, 0.1))
          .input(random_tensor(kBf16, {rows, K}, 3))
          .output(kBf16, {rows, K})
          .in_out(target({K}, 4, accumulate), 1.0);
      problem.expect_match(
          [=](Context& ctx, const Views& v) {
            linear_activation_backward_input(ctx, v[0], v[1], v[2], Activation::gelu_tanh,
                                             {v[3], v[4], accumulate});
          },
          "linear_activation_backward_input", 4);
    }
  }
}

TEST_F(Bf16Gradients, OfNorms) {
  for (const Accumulate accumulate : kBoth) {
    for (const auto& [rows, C] : std::vector<std::array<Dim, 2>>{
             {3, 7}, {5, 32}, {701, 768}, {13, 1032}, {6, 1603}, {5, 4096}, {2, 16384}}) {
      Problem problem(kBf16);
      problem.input(random_tensor(kBf16, {rows, C}, 1))
          .input(random_tensor(kBf16, {rows, C}, 2))
          .input(random_tensor(kBf16, {C}, 3))
          .input(filled_tensor(DType::f32, {rows}, 0.01))
          .input(filled_tensor(DType::f32, {rows}, 1.7))
          .in_out(random_tensor(kBf16, {rows, C}, 4));
      for (const std::uint64_t seed : {5, 6, 7, 8})
        problem.in_out(target({C}, seed, accumulate), 1);
      problem.expect_match(
          [=](Context& ctx, const Views& v) {
            norm_backward(ctx, NormKind::layernorm, v[0],
                          {.sum = v[1], .weight = v[2], .mean = v[3], .rstd = v[4]},
                          {.dsum = v[5],
                           .accumulate_input = Accumulate::yes,
                           .dweight = v[6],
                           .dbias = v[7],
                           .accumulate_weight = accumulate,
                           .arriving_sums = v[8],
                           .leaving_sums = v[9]});
          },
          "norm_backward " + std::to_string(C), 4);
    }
  }
}

TEST_F(Bf16Gradients, OfNormsOfHeads) {
  const HeadLayout layout = {6, 2, 40};
  for (const Accumulate accumulate : kBoth) {
    Problem problem(kBf16);
    problem.in_out(random_tensor(kBf16, {2, 77, layout.packed_width()}, 1))
        .input(random_tensor(kBf16, {40}, 2))
        .input(random_tensor(kBf16, {40}, 3))
        .output(kBf16, {2, 77, Dim{8} * 40})
        .output(DType::f32, {2, 77, 8})
        .in_out(random_tensor(kBf16, {2, 77, layout.packed_width()}, 4))
        .in_out(target({40}, 5, accumulate), 1.0)
        .in_out(target({40}, 6, accumulate), 1.0);
    problem.expect_match(
        [=](Context& ctx, const Views& v) {
          const HeadNormWeights weights = {v[1], v[2], 1e-5F};
          head_norm_forward(ctx, layout, weights, v[0], {v[3], v[4]});
          head_norm_backward(ctx, layout, weights, {v[3], v[4]}, v[5], {v[6], v[7], accumulate});
        },
        "head_norm", 2);
  }
}

/// By kernels of our own (64 wide) and by cuDNN (128).
TEST_F(Bf16Gradients, OfTheBiasOfAttention) {
  for (const HeadLayout& layout : {HeadLayout{4, 4, 64}, HeadLayout{4, 2, 128}}) {
    for (const Accumulate accumulate : kBoth) {
      for (const Dim T : {64, 200}) {
        const Shape out = {2, T, layout.heads * layout.head_width};
        const Dim packed = layout.packed_width();
        Problem problem(kBf16);
        problem.input(random_tensor(kBf16, {2, T, packed}, 1))
            .input(random_tensor(kBf16, out, 2))
            .output(kBf16, out)
            .output(DType::f32, {2, layout.heads, T})
            .output(kBf16, {2, T, packed})
            .in_out(target({packed}, 3, accumulate), 4.0);
        const auto call = [=](Context& ctx, const Views& v) {
          attention_forward(ctx, layout, {}, v[0], v[2], v[3]);
          attention_backward(ctx, layout, {}, v[1], {v[0], v[2], v[3]}, {v[4], v[5], accumulate});
        };
        const auto oracle = problem.on_oracle(call);
        const auto check = [&](const Results& found) {
          EXPECT_LE(relative_difference(found[5].view(), oracle[5].view(), 4.0),
                    2 * tolerance(kBf16))
              << layout.head_width << " wide, " << T << " tokens";
        };
        problem.on_each(call, check, {0});
      }
    }
  }
}

TEST_F(Bf16Gradients, OfSinks) {
  const HeadLayout layout = {9, 9, 80};
  for (const Accumulate accumulate : kBoth) {
    Problem problem(kBf16);
    problem.input(random_tensor(kBf16, {2, 700, Dim{9} * 80}, 1))
        .input(random_tensor(kBf16, {2, 700, Dim{9} * 80}, 2))
        .input(random_tensor(DType::f32, {2, 9, 700}, 3))
        .in_out(target({9}, 4, accumulate), 1.0);
    problem.expect_match(
        [=](Context& ctx, const Views& v) {
          attention_sinks_backward(ctx, layout, v[0], v[1], v[2], accumulate, v[3]);
        },
        "attention_sinks_backward");
  }
}

TEST_F(Bf16Gradients, OfTables) {
  for (const auto& [T, V] : std::vector<std::array<Dim, 2>>{{30, 101}, {700, 5}, {500, 1}}) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(2 * T));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(i * 3 % static_cast<std::size_t>(V));
    }
    std::vector<std::int32_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return ids[i]; });
    for (const Dim C : {1, 8, 37, 520}) {
      for (const Accumulate accumulate : kBoth) {
        Problem problem(kBf16);
        problem.fixed(int_tensor({2, T}, ids))
            .fixed(int_tensor({2 * T}, order))
            .input(random_tensor(kBf16, {2, T, C}, 1))
            .in_out(target({V, C}, 2, accumulate), 1.0)
            .in_out(target({T, C}, 3, accumulate), 1.0);
        problem.expect_match(
            [=, V = V](Context& ctx, const Views& v) {
              embedding_backward(ctx, {v[0], v[1]}, v[2], whole_vocabulary(V), 0.5F, accumulate,
                                 v[3]);
              position_backward(ctx, v[2], 0, {}, accumulate, v[4]);
            },
            "embedding_backward and position_backward");
      }
    }
  }
}

TEST_F(Bf16Gradients, OfPatches) {
  for (const Accumulate accumulate : kBoth) {
    for (const Dim C : {13, 192}) {
      Problem problem(kBf16);
      problem.input(random_tensor(kBf16, {5, 10, C}, 1))
          .output(kBf16, {5, 9, C})
          .in_out(target({C}, 2, accumulate), 1.0)
          .in_out(target({10, C}, 3, accumulate), 1.0);
      problem.expect_match(
          [=](Context& ctx, const Views& v) {
            patch_tokens_backward(ctx, v[0], accumulate, v[1], v[2], v[3]);
          },
          "patch_tokens_backward");
    }
  }
}

/// What reads them: the norm and the updates, by vectors and one by one.
TEST_F(Bf16Gradients, UpdateAsThoseInF32) {
  StepState state;
  state.input.learning_rate = 1e-2F;
  state.clip_scale = 0.5F;
  state.bias_correction1 = 0.19F;
  state.bias_correction2 = 0.0975F;
  using Update = std::function<void(Context&, const StepState*, const Views&)>;
  const std::vector<std::pair<std::string, Update>> updates = {
      {"adamw",
       [](Context& ctx, const StepState* step, const Views& v) {
         adamw(ctx, {}, step, {v[2], v[3], v[6], v[0]}, v[4], v[5]);
       }},
      {"sgd",
       [](Context& ctx, const StepState* step, const Views& v) {
         sgd(ctx, 0.9F, step, {v[2], v[3], v[6], v[0]}, v[4]);
       }},
      {"muon_direction", [](Context& ctx, const StepState* step, const Views& v) {
         muon_direction(ctx, 0.95F, step, v[3], v[4], v[5]);
       }}};
  for (const Dim size : {1, 31, 64, 4097, 100000}) {
    const Dim granules = (size + kDecayGranule - 1) / kDecayGranule;
    for (const auto& named : updates) {
      const Update& update = named.second;
      Problem problem(DType::f32);
      problem.fixed(filled_tensor(DType::f32, {granules}, 0.1))
          .fixed(bytes_of(state))
          .in_out(random_tensor(DType::f32, {size}, 1))
          .input(random_tensor(kBf16, {size}, 2))
          .in_out(random_tensor(DType::f32, {size}, 3))
          .in_out(filled_tensor(DType::f32, {size}, 0.5))
          .in_out(filled_tensor(kBf16, {size}, 1));
      problem.expect_match(
          [&](Context& ctx, const Views& v) { update(ctx, struct_at<StepState>(v[1]), v); },
          named.first);
    }
    Problem squares(DType::f32);
    squares.input(random_tensor(kBf16, {size}, 1, 10.0))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 3));
    squares.expect_match([](Context& ctx, const Views& v) { add_norm_squared(ctx, v[0], v[1]); },
                         "add_norm_squared", 0.1);
  }
}

}  // namespace
}  // namespace hyperslab::ops
