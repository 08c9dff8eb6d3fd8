// SPDX-License-Identifier: Apache-2.0
// Ops on operands stored in bf16: what they give in f32 on the same numbers, rounded once. Products
// are in bf16_products_test.cpp.
#include "cpu/bf16_rounding.hpp"
#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Bf16 : public OpsTest {
 protected:
  static Tensor wide(const Tensor& x) { return converted(x.view(), DType::f32); }
  /// EXPECTs the bf16 result to have the bits of the f32 result, rounded.
  static void expect_rounded(CView found, CView expected, const char* what) {
    EXPECT_TRUE(same_bits(found, converted(expected, DType::bf16).view())) << what;
  }
};

TEST_F(Bf16, LoopsHaveTheBitsOfTheScalarConversions) {
  std::vector<float> values;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFU; bits += 40961) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(),
                {0.0F, -0.0F, infinity, -infinity, std::nanf(""), std::bit_cast<float>(0x7F800001U),
                 1 + 0x1p-8F, 1 + 3 * 0x1p-8F, std::numeric_limits<float>::max()});
  const auto count = static_cast<Dim>(values.size());
  std::vector<bf16> narrow(values.size());
  std::vector<float> back(values.size());

  cpu::round_to_bf16(values.data(), count, narrow.data());
  cpu::widen(narrow.data(), count, back.data());

  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrow[i].bits, to_bf16(values[i]).bits) << values[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]),
              std::bit_cast<std::uint32_t>(to_float(narrow[i])));
  }
}

TEST_F(Bf16, OpsWorkInPlace) {
  const Tensor x = bf16_numbers({4, 3000}, 1);
  const Tensor y = bf16_numbers({4, 3000}, 2);
  Tensor sum = x.clone();
  Tensor wide_sum = wide(x);
  Tensor doubled = x.clone();

  add(ctx, sum.view(), y.view(), sum.view());
  add(ctx, wide_sum.view(), wide(y).view(), wide_sum.view());
  add(ctx, doubled.view(), doubled.view(), doubled.view());

  expect_rounded(sum.view(), wide_sum.view(), "x + y over x");
  for (Dim i = 0; i < x.view().numel(); ++i) {
    ASSERT_EQ(to_float(doubled.view().data<bf16>()[i]), 2 * to_float(x.view().data<bf16>()[i]));
  }
}

TEST_F(Bf16, NormsKeepTheirStatisticsInF32) {
  const Tensor x = bf16_numbers({6, 33}, 1);
  const Tensor weight = bf16_numbers({33}, 2);
  const Tensor dy = bf16_numbers({6, 33}, 3);
  const auto run = [&](const Tensor& in, const Tensor& scale, const Tensor& gradient) {
    std::array results = {poisoned(in.view().dtype(), {6, 33}), poisoned(DType::f32, {6}),
                          poisoned(in.view().dtype(), {6, 33}), poisoned(DType::f32, {33})};
    auto& [y, rstd, dsum, dweight] = results;
    add_norm_forward(ctx, NormKind::rmsnorm,
                     {.residual = in.view(), .weight = scale.view(), .eps = 1e-5F},
                     {.y = y.view(), .rstd = rstd.view()});
    norm_backward(ctx, NormKind::rmsnorm, gradient.view(),
                  {.sum = in.view(), .weight = scale.view(), .rstd = rstd.view()},
                  {.dsum = dsum.view(), .dweight = dweight.view()});
    return results;
  };

  const auto found = run(x, weight, dy);
  const auto expected = run(wide(x), wide(weight), wide(dy));

  expect_rounded(found[0].view(), expected[0].view(), "y");
  EXPECT_TRUE(same_bits(found[1].view(), expected[1].view())) << "rstd";
  expect_rounded(found[2].view(), expected[2].view(), "dsum");
  EXPECT_TRUE(same_bits(found[3].view(), expected[3].view())) << "dweight";
}

TEST_F(Bf16, AttentionAndItsGradient) {
  const HeadLayout layout = {.heads = 4, .kv_heads = 2, .head_width = 8};
  const Tensor qkv = bf16_numbers({2, 7, layout.packed_width()}, 1);
  const Tensor dout = bf16_numbers({2, 7, 32}, 2);
  Tensor out = poisoned(DType::bf16, {2, 7, 32});
  Tensor wide_out = poisoned(DType::f32, {2, 7, 32});
  Tensor log_sum_exp = poisoned(DType::f32, {2, 4, 7});
  Tensor dqkv = poisoned(DType::bf16, qkv.view().shape());
  Tensor wide_dqkv = poisoned(DType::f32, qkv.view().shape());
  Tensor dbias = poisoned(DType::f32, {layout.packed_width()});
  Tensor wide_dbias = poisoned(DType::f32, {layout.packed_width()});

  attention_forward(ctx, layout, {}, wide(qkv).view(), wide_out.view(), log_sum_exp.view());
  attention_forward(ctx, layout, {}, qkv.view(), out.view(), log_sum_exp.view());
  attention_backward(ctx, layout, {}, dout.view(), {qkv.view(), out.view(), log_sum_exp.view()},
                     {dqkv.view(), dbias.view()});
  attention_backward(ctx, layout, {}, wide(dout).view(),
                     {wide(qkv).view(), wide(out).view(), log_sum_exp.view()},
                     {wide_dqkv.view(), wide_dbias.view()});

  expect_rounded(out.view(), wide_out.view(), "out");
  expect_rounded(dqkv.view(), wide_dqkv.view(), "dqkv");
  EXPECT_TRUE(same_bits(dbias.view(), wide_dbias.view())) << "dbias";
}

TEST_F(Bf16, LossSumsInF32AndWritesItsGradientInBf16) {
  Tensor logits = bf16_numbers({3, 19}, 1);
  Tensor wide_logits = wide(logits);
  const Tensor targets = int_tensor({3}, {4, 0, 18});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  Tensor wide_sums = filled_tensor(DType::f32, {kSumCount}, 0);
  StepState state;
  state.gradient_scale = 0.25F;
  const VocabularyShard whole = {.first = 0, .count = 19, .vocabulary = 19};

  softmax_cross_entropy(ctx, {logits.view(), whole, targets.view()}, &state, WithGradient::yes,
                        sums.view());
  softmax_cross_entropy(ctx, {wide_logits.view(), whole, targets.view()}, &state, WithGradient::yes,
                        wide_sums.view());

  expect_rounded(logits.view(), wide_logits.view(), "gradient");
  EXPECT_TRUE(same_bits(sums.view(), wide_sums.view()));
}

TEST_F(Bf16, WhatNoOpRoundsToIsNamed) {
  const Tensor half = filled_tensor(DType::f16, {2, 2}, 1);
  Tensor y = filled_tensor(DType::f16, {2, 2}, 1);
  expect_error_naming("add: CPU ranks compute in f32 or f64, found f16",
                      [&] { add(ctx, half.view(), half.view(), y.view()); });
}

}  // namespace
}  // namespace hyperslab::ops
