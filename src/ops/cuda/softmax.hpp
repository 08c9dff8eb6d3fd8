// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// Scores become probabilities in place: row i of each T x T square holds softmax(scale * score)
/// over the keys that the mask leaves, and zeros in place of the others. scores: (B, H, T, T) in
/// f32, bf16 or f16. If dropout is active, dropped: (B, H, T, T) receives probabilities * keep /
/// (1 - p), else it may be absent. A chunk of samples may be given, with a Dropout whose
/// sample_position is sliced alike.
void masked_softmax_forward(Context& ctx, const AttentionMask& mask, float scale,
                            const Dropout& dropout, View scores, View dropped);

/// Gradients of the dropped probabilities become those of the scores before scaling, in place:
///   dprobability = dropped gradient * keep / (1 - p)
///   dscore = probability * (dprobability - sum over keys of probability * dprobability) * scale
/// with zeros for masked keys; what dprobabilities held there does not matter. All:
/// (B, H, T, T). If dropout is active, dropped receives the dropped probabilities again (for
/// dvalues), else it may be absent.
void masked_softmax_backward(Context& ctx, const AttentionMask& mask, float scale,
                             const Dropout& dropout, CView probabilities, View dprobabilities,
                             View dropped);

}  // namespace hyperslab::ops::cuda
