// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// Which keys the queries of some samples see, the cap of their scores, and sinks.
struct SoftmaxRows {
  AttentionMask mask;
  CView first_keys;  ///< (B, T) i32 of these samples, or absent
  float softcap = 0;
  AttentionSinks sinks{};  ///< weights of these samples
};

/// Scores become probabilities in place: row i of each T x T square holds the softmax of the
/// capped scores over the keys that the query sees and its head's sink, and zeros in place of the
/// others. scores: (B, H, T, T) in f32, bf16 or f16, scaled. If dropout is active, dropped: (B, H,
/// T, T) receives probabilities * keep / (1 - p), else it may be absent. A chunk of samples may be
/// given, with a Dropout whose sample_position is sliced alike.
void masked_softmax_forward(Context& ctx, const SoftmaxRows& rows, const Dropout& dropout,
                            View scores, View dropped);

/// Gradients of the dropped probabilities become, in place, gradients of scores before scaling:
///   dprobability = dropped gradient * keep / (1 - p)
///   dscore = probability * (dprobability - sum over keys of probability * dprobability) * scale
/// times 1 - tanh(score / softcap)^2 if scores are capped, with zeros for masked keys; values of
/// dprobabilities there do not matter. All: (B, H, T, T). If dropout is active, dropped
/// receives the dropped probabilities again (for dvalues), else it may be absent. scores: (B, H, T,
/// T), scaled and not capped; only if they are capped.
struct SoftmaxSaved {
  CView probabilities;
  CView scores;
};
void masked_softmax_backward(Context& ctx, const SoftmaxRows& rows, float scale,
                             const Dropout& dropout, const SoftmaxSaved& saved, View dprobabilities,
                             View dropped);

}  // namespace hyperslab::ops::cuda
