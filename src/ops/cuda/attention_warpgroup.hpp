// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// tiled_attention_forward and tiled_attention_backward (attention_tiled.hpp) by Hopper's
/// warpgroups, for heads of 64 or 128 elements.
void warpgroup_attention_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, View out,
                                 View log_sum_exp);
void warpgroup_attention_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionSaved& saved, const AttentionGradients& gradients);

/// True if the two above take heads of this layout on the GPU in use, as this was built.
[[nodiscard]] bool suits_warpgroups(const HeadLayout& layout);

/// True if they are faster than cuDNN's kernels without documents and caps: with heads of 64
/// elements up to some context (analysis/results/attention-h100.txt).
[[nodiscard]] constexpr bool warpgroups_outrun_cudnn(const HeadLayout& layout,
                                                     const AttentionMask& mask, Dim T) {
  return layout.head_width == 64 && T <= 2048 && mask.window == 0;
}

}  // namespace hyperslab::ops::cuda
