// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// tiled_attention_forward and tiled_attention_backward (tiled.hpp) by Hopper's
/// warpgroups, for heads of 64 or 128 elements.
void warpgroup_attention_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, View out,
                                 View log_sum_exp);
void warpgroup_attention_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionSaved& saved, const AttentionGradients& gradients);

/// True if the two above have a kernel for heads of this layout.
[[nodiscard]] constexpr bool has_warpgroup_width(const HeadLayout& layout) {
  return layout.head_width == 64 || layout.head_width == 128;
}

}  // namespace hyperslab::ops::cuda
