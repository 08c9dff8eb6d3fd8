// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// ops::attention_forward and attention_backward by kernels of our own that need no more than
/// Ampere (Hopper has better ones, warpgroup.hpp), for cases that cuDNN's leave out:
/// scores that are capped, and queries that see their document alone. Causal; bf16 or f16; heads
/// of a multiple of 8 elements up to 256; views that begin at multiples of 16 bytes. Both are
/// deterministic, allocate nothing, and read first_keys on the GPU, so that a graph can replay them
/// with other documents. Tiles of 64 keys that a tile of 64 queries does not see are skipped.
void tiled_attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView qkv, View out, View log_sum_exp);
void tiled_attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView dout, const AttentionSaved& saved, View dqkv);

}  // namespace hyperslab::ops::cuda
