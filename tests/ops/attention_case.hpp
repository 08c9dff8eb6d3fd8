// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"
#include "ops_test.hpp"
#include "support/first_keys.hpp"

namespace hyperslab::ops::test {

using namespace hyperslab::test;

inline constexpr AttentionMask kCausal = {AttentionMask::Kind::causal};
inline constexpr AttentionMask kNoMask = {AttentionMask::Kind::none};

/// Sizes of one attention problem, and what its scores are made of; documents of a few tokens if
/// there are any: their first tokens are the multiples of `document`, shifted by the sample.
struct AttentionSize {
  Dim B;
  Dim T;
  HeadLayout layout;
  AttentionMask mask = kCausal;
  Dim document = 0;
  double scale = 0;
  double softcap = 0;
  bool sinks = false;
  [[nodiscard]] Shape packed() const { return {B, T, layout.packed_width()}; }
  [[nodiscard]] Shape out() const { return {B, T, layout.heads * layout.head_width}; }
  [[nodiscard]] Shape statistics() const { return {B, layout.heads, T}; }
  [[nodiscard]] Shape square() const { return {B, layout.heads, T, T}; }
  /// `documents`: first_keys() of the size, read if there are documents.
  [[nodiscard]] AttentionScores scores(CView documents) const {
    AttentionScores scores(mask);
    scores.scale = scale;
    scores.softcap = softcap;
    if (document > 0) scores.first_keys = documents;
    return scores;
  }
  [[nodiscard]] std::string str() const {
    return "B " + std::to_string(B) + " T " + std::to_string(T) + " heads " +
           std::to_string(layout.heads) + "/" + std::to_string(layout.kv_heads) + " x " +
           std::to_string(layout.head_width) + " mask " + std::string(name_of(mask.kind)) +
           " window " + std::to_string(mask.window) + " document " + std::to_string(document) +
           " softcap " + std::to_string(softcap);
  }
};

/// Sizes of one, primes, all head ratios, widths beside the vector width, several blocks; each with
/// every mask, and in turns with windows, documents, and capped scores.
inline std::vector<AttentionSize> awkward_sizes() {
  std::vector<AttentionSize> sizes = {
      {1, 1, {1, 1, 1}},   {2, 1, {2, 1, 4}},    {1, 7, {3, 3, 5}},
      {2, 33, {4, 2, 17}}, {1, 64, {4, 1, 16}},  {1, 131, {2, 2, 32}},
      {1, 97, {6, 3, 33}}, {1, 290, {2, 1, 24}}, {0, 5, {2, 1, 8}}};
  for (std::size_t i = 0, causal = sizes.size(); i < causal; ++i) {
    sizes.push_back(sizes[i]);
    sizes.back().mask = kNoMask;
    for (const Dim window : {1, 5, 40}) {
      sizes.push_back(sizes[i]);
      sizes.back().mask.window = window;
      sizes.back().document = window == 5 ? 37 : 0;
      sizes.back().softcap = window == 40 ? 0.75 : 0;
    }
    sizes.push_back(sizes[i]);
    sizes.back().document = 3 + 11 * static_cast<Dim>(i);
    sizes.back().scale = 0.3;
    sizes.push_back(sizes[i]);
    sizes.back().softcap = 2;
    sizes.back().scale = 0.9;
    if (i % 2 == 0) sizes.back().mask = kNoMask;
  }
  return sizes;
}

/// Inputs and outputs of one problem in one dtype; the inputs are equal in every dtype.
struct AttentionCase {
  AttentionSize size;
  Tensor qkv, dout;
  Tensor out, log_sum_exp, probabilities, dprobabilities, dqkv;
  Tensor first_keys;  ///< without elements if there are no documents
  Tensor sinks;       ///< (H), read if the size has sinks
  Tensor sink_weights, dsinks;
  View written_weights;  ///< sink_weights

  AttentionCase(const AttentionSize& s, DType dtype)
      : size(s),
        qkv(converted(random_tensor(DType::f32, s.packed(), 1).view(), dtype)),
        dout(converted(random_tensor(DType::f32, s.out(), 2).view(), dtype)),
        out(poisoned(dtype, s.out())),
        log_sum_exp(poisoned(dtype, s.statistics())),
        probabilities(poisoned(dtype, s.square())),
        dprobabilities(poisoned(dtype, s.square())),
        dqkv(poisoned(dtype, s.packed())),
        sinks(converted(random_tensor(DType::f32, {s.layout.heads}, 3).view(), dtype)),
        sink_weights(poisoned(dtype, s.statistics())),
        dsinks(poisoned(dtype, {s.layout.heads})) {
    written_weights = sink_weights.view();
    if (s.document > 0) first_keys = hyperslab::test::first_keys(s.B, s.T, s.document);
  }

  [[nodiscard]] AttentionScores scores() const {
    AttentionScores scores = size.scores(first_keys.view());
    if (size.sinks) scores.sinks = {sinks.view(), written_weights};
    return scores;
  }
  [[nodiscard]] Dim first_key(Dim b, Dim t) const {
    const Dim of_window = size.mask.window > 0 ? std::max<Dim>(0, t + 1 - size.mask.window) : 0;
    if (size.document == 0) return of_window;
    return std::max<Dim>(of_window, first_keys.view().data<std::int32_t>()[b * size.T + t]);
  }

  void forward(Context& ctx) {
    attention_forward(ctx, size.layout, scores(), qkv.view(), out.view(), log_sum_exp.view());
  }
  void backward(Context& ctx) {
    attention_backward(ctx, size.layout, scores(), dout.view(),
                       {qkv.view(), out.view(), log_sum_exp.view()}, {dqkv.view()});
  }
  void sinks_backward(Context& ctx, Accumulate accumulate = Accumulate::no) {
    attention_sinks_backward(ctx, size.layout, dout.view(), out.view(), sink_weights.view(),
                             accumulate, dsinks.view());
  }
  void reference_forward(Context& ctx, const Dropout& dropout = {}) {
    attention_reference_forward(ctx, size.layout, scores(), qkv.view(), dropout, out.view(),
                                probabilities.view());
  }
  void reference_backward(Context& ctx, const Dropout& dropout = {}) {
    attention_reference_backward(ctx, size.layout, scores(), dout.view(),
                                 {qkv.view(), probabilities.view(), dropout}, dprobabilities.view(),
                                 dqkv.view());
  }
};

}  // namespace hyperslab::ops::test
