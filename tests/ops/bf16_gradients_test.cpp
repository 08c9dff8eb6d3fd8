// SPDX-License-Identifier: Apache-2.0
// Gradients of parameters in bf16 (precision.gradients): what ops give in f32, rounded once; and
// what updates make of them.
#include <algorithm>
#include <functional>
#include <numeric>

#include "cpu/bf16_rounding.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/classes.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/head_norm.hpp"
#include "hyperslab/ops/muon.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Bf16Gradients : public OpsTest {
 protected:
  using Call = std::function<void(Accumulate, const std::vector<View>&)>;
  /// EXPECTs gradients of these shapes, begun with numbers of bf16 if they are added to, to have
  /// the bits of those in f32, rounded.
  static void expect_rounded(const std::vector<Shape>& shapes, const std::string& what,
                             const Call& call) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      std::vector<Tensor> narrow;
      std::vector<Tensor> wide;
      std::vector<View> narrow_views;
      std::vector<View> wide_views;
      for (const Shape& shape : shapes) {
        narrow.push_back(accumulate == Accumulate::yes ? bf16_numbers(shape, 9)
                                                       : filled_tensor(DType::bf16, shape, 7));
        wide.push_back(converted(narrow.back().view(), DType::f32));
        narrow_views.push_back(narrow.back().view());
        wide_views.push_back(wide.back().view());
      }

      call(accumulate, narrow_views);
      call(accumulate, wide_views);

      for (std::size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_TRUE(same_bits(narrow[i].view(), converted(wide[i].view(), DType::bf16).view()))
            << what << ", gradient " << i;
      }
    }
  }
};

TEST_F(Bf16Gradients, OfMatricesAndBiases) {
  const Tensor dy = bf16_numbers({33, 20}, 1);
  const Tensor x = bf16_numbers({33, 24}, 2);
  const Tensor weight = bf16_numbers({20, 24}, 3);
  Tensor dpre = filled_tensor(DType::bf16, {33, 24}, 0);
  const auto of_layer = [&](Accumulate accumulate, const std::vector<View>& g) {
    linear_backward_weight(ctx, dy.view(), x.view(), accumulate, g[0], g[1]);
  };
  const auto of_bias = [&](Accumulate accumulate, const std::vector<View>& g) {
    linear_activation_backward_input(ctx, dy.view(), weight.view(), x.view(), Activation::gelu_tanh,
                                     {dpre.view(), g[0], accumulate});
  };

  expect_rounded({{20, 24}, {20}}, "linear_backward_weight", of_layer);
  expect_rounded({{24}}, "linear_activation_backward_input", of_bias);
}

TEST_F(Bf16Gradients, OfNorms) {
  const Tensor x = bf16_numbers({6, 33}, 1);
  const Tensor weight = bf16_numbers({33}, 2);
  const Tensor dy = bf16_numbers({6, 33}, 3);
  const Tensor mean = filled_tensor(DType::f32, {6}, 0.1);
  const Tensor rstd = filled_tensor(DType::f32, {6}, 1.5);
  const auto call = [&](Accumulate accumulate, const std::vector<View>& g) {
    Tensor dsum = bf16_numbers({6, 33}, 4);
    norm_backward(
        ctx, NormKind::layernorm, dy.view(),
        {.sum = x.view(), .weight = weight.view(), .mean = mean.view(), .rstd = rstd.view()},
        {.dsum = dsum.view(),
         .accumulate_input = Accumulate::yes,
         .dweight = g[0],
         .dbias = g[1],
         .accumulate_weight = accumulate,
         .arriving_sums = g[2],
         .leaving_sums = g[3]});
  };

  expect_rounded({{33}, {33}, {33}, {33}}, "norm_backward", call);
}

TEST_F(Bf16Gradients, OfAttention) {
  const HeadLayout layout = {.heads = 4, .kv_heads = 2, .head_width = 8};
  const Tensor qkv = bf16_numbers({2, 7, layout.packed_width()}, 1);
  const Tensor dout = bf16_numbers({2, 7, 32}, 2);
  const Tensor head_weight = bf16_numbers({8}, 3);
  Tensor out = filled_tensor(DType::bf16, {2, 7, 32}, 0);
  Tensor log_sum_exp = filled_tensor(DType::f32, {2, 4, 7}, 0);
  attention_forward(ctx, layout, {}, qkv.view(), out.view(), log_sum_exp.view());
  const auto of_bias = [&](Accumulate accumulate, const std::vector<View>& g) {
    Tensor dqkv = filled_tensor(DType::bf16, qkv.view().shape(), 0);
    attention_backward(ctx, layout, {}, dout.view(), {qkv.view(), out.view(), log_sum_exp.view()},
                       {dqkv.view(), g[0], accumulate});
  };
  const auto of_sinks = [&](Accumulate accumulate, const std::vector<View>& g) {
    attention_sinks_backward(ctx, layout, dout.view(), out.view(), log_sum_exp.view(), accumulate,
                             g[0]);
  };
  const auto of_head_norms = [&](Accumulate accumulate, const std::vector<View>& g) {
    Tensor normed = qkv.clone();
    Tensor heads = filled_tensor(DType::bf16, {2, 7, 48}, 0);
    Tensor rstd = filled_tensor(DType::f32, {2, 7, 6}, 0);
    Tensor dqkv = bf16_numbers(qkv.view().shape(), 4);
    const HeadNormWeights weights = {head_weight.view(), head_weight.view(), 1e-5F};
    head_norm_forward(ctx, layout, weights, normed.view(), {heads.view(), rstd.view()});
    head_norm_backward(ctx, layout, weights, {heads.view(), rstd.view()}, dqkv.view(),
                       {g[0], g[1], accumulate});
  };

  expect_rounded({{layout.packed_width()}}, "attention_backward", of_bias);
  expect_rounded({{4}}, "attention_sinks_backward", of_sinks);
  expect_rounded({{8}, {8}}, "head_norm_backward", of_head_norms);
}

TEST_F(Bf16Gradients, OfTables) {
  const std::vector<std::int32_t> ids = {3, 1, 3, 0, 3, 4, 1, 3};
  std::vector<std::int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return ids[i]; });
  const Tensor tokens = int_tensor({2, 4}, ids);
  const Tensor sorted = int_tensor({8}, order);
  const Tensor dy = bf16_numbers({2, 4, 12}, 1);
  const auto of_tokens = [&](Accumulate accumulate, const std::vector<View>& g) {
    embedding_backward(ctx, {tokens.view(), sorted.view()}, dy.view(), whole_vocabulary(5), 0.5F,
                       accumulate, g[0]);
  };
  const auto of_positions = [&](Accumulate accumulate, const std::vector<View>& g) {
    position_backward(ctx, dy.view(), 0, {}, accumulate, g[0]);
  };
  const auto of_patches = [&](Accumulate accumulate, const std::vector<View>& g) {
    Tensor dpatches = filled_tensor(DType::bf16, {2, 3, 12}, 0);
    patch_tokens_backward(ctx, dy.view(), accumulate, dpatches.view(), g[0], g[1]);
  };

  expect_rounded({{5, 12}}, "embedding_backward", of_tokens);
  expect_rounded({{6, 12}}, "position_backward", of_positions);
  expect_rounded({{12}, {4, 12}}, "patch_tokens_backward", of_patches);
}

TEST_F(Bf16Gradients, UpdateAsTheSameNumbersInF32) {
  const Tensor narrow = bf16_numbers({200}, 1);
  const Tensor wide = converted(narrow.view(), DType::f32);
  const Tensor decay = filled_tensor(DType::f32, {(200 + kDecayGranule - 1) / kDecayGranule}, 0.1);
  StepState state;
  state.input.learning_rate = 1e-2F;
  state.clip_scale = 0.5F;
  state.bias_correction1 = 0.19F;
  state.bias_correction2 = 0.0975F;
  const auto run = [&](const Tensor& gradient) {
    std::vector<Tensor> all;
    for (int i = 0; i < 7; ++i) {
      all.push_back(filled_tensor(DType::f32, {200}, 0.25 * (i + 1)));
    }
    Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
    adamw(ctx, {}, &state, {all[0].view(), gradient.view(), {}, decay.view()}, all[1].view(),
          all[2].view());
    sgd(ctx, 0.9F, &state, {all[3].view(), gradient.view(), {}, decay.view()}, all[4].view());
    muon_direction(ctx, 0.95F, &state, gradient.view(), all[5].view(), all[6].view());
    add_norm_squared(ctx, gradient.view(), sums.view());
    all.push_back(std::move(sums));
    return all;
  };

  const auto found = run(narrow);
  const auto expected = run(wide);

  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(same_bits(found[i].view(), expected[i].view())) << "result " << i;
  }
  EXPECT_GT(expected.back().view().data<float>()[kSumNormSquared], 100);
}

/// Activations in f32 have gradients in f32.
TEST_F(Bf16Gradients, AreRefusedBesideOtherActivations) {
  const Tensor dy = random_tensor(DType::f32, {3, 4}, 1);
  Tensor dbias = filled_tensor(DType::bf16, {4}, 0);

  EXPECT_THROW(linear_backward_weight(ctx, dy.view(), {}, Accumulate::no, {}, dbias.view()), Error);
}

}  // namespace
}  // namespace hyperslab::ops
