// SPDX-License-Identifier: Apache-2.0
#include "attention_case.hpp"
#include "finite_difference.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class AttentionGradient : public OpsTest {};

TEST_F(AttentionGradient, MatchesDifferencesForEveryHeadRatio) {
  for (const AttentionSize& size :
       {AttentionSize{2, 5, {2, 2, 3}},
        {1, 6, {4, 2, 2}},
        {1, 7, {3, 1, 3}},
        {2, 1, {2, 1, 2}},
        {2, 5, {2, 2, 3}, kNoMask},
        {1, 6, {4, 2, 2}, kNoMask},
        {1, 7, {3, 1, 3}, {AttentionMask::Kind::causal, 3}},
        {2, 7, {2, 1, 3}, kCausal, 3, 0.8},
        {1, 6, {4, 2, 2}, kNoMask, 0, 0.8, 0.6},
        {2, 9, {2, 1, 2}, {AttentionMask::Kind::causal, 4}, 5, 0.8, 0.6}}) {
    AttentionCase c(size, DType::f64);

    c.forward(ctx);
    c.backward(ctx);

    const Tensor gradient = c.dqkv.clone();
    expect_gradient("dqkv", c.qkv.view(), gradient.view(), [&] {
      c.forward(ctx);
      return inner_product(c.dout.view(), c.out.view());
    });
  }
}

TEST_F(AttentionGradient, CrossesBlocksOfQueriesAndKeys) {
  for (const AttentionMask& mask : {kCausal, kNoMask}) {
    AttentionCase c({1, 139, {1, 1, 1}, mask}, DType::f64);

    c.forward(ctx);
    c.backward(ctx);

    const Tensor gradient = c.dqkv.clone();
    expect_gradient("dqkv", c.qkv.view(), gradient.view(), [&] {
      c.forward(ctx);
      return inner_product(c.dout.view(), c.out.view());
    });
  }
}

TEST_F(AttentionGradient, ReferenceMatchesDifferencesWithAndWithoutDropout) {
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {2}, {4, 9});
  for (const AttentionMask& mask : {kCausal, kNoMask}) {
    for (const float probability : {0.0F, 0.4F}) {
      const Dropout dropout_spec = {probability, 1, 2, position.view(), &state};
      AttentionCase c({2, 6, {4, 2, 3}, mask}, DType::f64);

      c.reference_forward(ctx, dropout_spec);
      c.reference_backward(ctx, dropout_spec);

      const Tensor gradient = c.dqkv.clone();
      expect_gradient("dqkv", c.qkv.view(), gradient.view(), [&] {
        c.reference_forward(ctx, dropout_spec);
        return inner_product(c.dout.view(), c.out.view());
      });
    }
  }
}

TEST_F(AttentionGradient, ReferenceDropsAlikeInEveryBlockOfRows) {
  // 67 rows are two blocks; the backward pass drops the whole square at once.
  const StepState state = {.input = {.step = 3}};
  const Tensor position = tensor_of(DType::i64, {1}, {11});
  const Dropout dropout_spec = {0.3F, 1, 2, position.view(), &state};
  AttentionCase c({1, 67, {1, 1, 1}}, DType::f64);

  c.reference_forward(ctx, dropout_spec);
  c.reference_backward(ctx, dropout_spec);

  const Tensor gradient = c.dqkv.clone();
  expect_gradient("dqkv", c.qkv.view(), gradient.view(), [&] {
    c.reference_forward(ctx, dropout_spec);
    return inner_product(c.dout.view(), c.out.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
