// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops::test {

using namespace hyperslab::test;

inline constexpr AttentionMask kCausal = {AttentionMask::Kind::causal};
inline constexpr AttentionMask kNoMask = {AttentionMask::Kind::none};

/// Sizes of one attention problem, and its mask.
struct AttentionSize {
  Dim B;
  Dim T;
  HeadLayout layout;
  AttentionMask mask = kCausal;
  [[nodiscard]] Shape packed() const { return {B, T, layout.packed_width()}; }
  [[nodiscard]] Shape out() const { return {B, T, layout.heads * layout.head_width}; }
  [[nodiscard]] Shape statistics() const { return {B, layout.heads, T}; }
  [[nodiscard]] Shape square() const { return {B, layout.heads, T, T}; }
};

/// Sizes of one, primes, all head ratios, widths beside the vector width, several blocks; each with
/// every mask.
inline std::vector<AttentionSize> awkward_sizes() {
  std::vector<AttentionSize> sizes = {
      {1, 1, {1, 1, 1}},   {2, 1, {2, 1, 4}},    {1, 7, {3, 3, 5}},
      {2, 33, {4, 2, 17}}, {1, 64, {4, 1, 16}},  {1, 131, {2, 2, 32}},
      {1, 97, {6, 3, 33}}, {1, 290, {2, 1, 24}}, {0, 5, {2, 1, 8}}};
  for (std::size_t i = 0, causal = sizes.size(); i < causal; ++i) {
    sizes.push_back(sizes[i]);
    sizes.back().mask = kNoMask;
  }
  return sizes;
}

/// Inputs and outputs of one problem in one dtype; the inputs are equal in every dtype.
struct AttentionCase {
  AttentionSize size;
  Tensor qkv, dout;
  Tensor out, log_sum_exp, probabilities, dprobabilities, dqkv;

  AttentionCase(const AttentionSize& s, DType dtype)
      : size(s),
        qkv(converted(random_tensor(DType::f32, s.packed(), 1).view(), dtype)),
        dout(converted(random_tensor(DType::f32, s.out(), 2).view(), dtype)),
        out(poisoned(dtype, s.out())),
        log_sum_exp(poisoned(dtype, s.statistics())),
        probabilities(poisoned(dtype, s.square())),
        dprobabilities(poisoned(dtype, s.square())),
        dqkv(poisoned(dtype, s.packed())) {}

  void forward(Context& ctx) {
    attention_forward(ctx, size.layout, size.mask, qkv.view(), out.view(), log_sum_exp.view());
  }
  void backward(Context& ctx) {
    attention_backward(ctx, size.layout, size.mask, dout.view(),
                       {qkv.view(), out.view(), log_sum_exp.view()}, dqkv.view());
  }
  void reference_forward(Context& ctx, const Dropout& dropout = {}) {
    attention_reference_forward(ctx, size.layout, size.mask, qkv.view(), dropout, out.view(),
                                probabilities.view());
  }
  void reference_backward(Context& ctx, const Dropout& dropout = {}) {
    attention_reference_backward(ctx, size.layout, size.mask, dout.view(),
                                 {qkv.view(), probabilities.view(), dropout}, dprobabilities.view(),
                                 dqkv.view());
  }
};

}  // namespace hyperslab::ops::test
