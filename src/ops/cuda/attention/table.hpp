// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "cuda/tools/kernel_table.hpp"
#include "cudnn.hpp"
#include "tiled.hpp"
#include "warpgroup.hpp"

// The kernels of attention in training.

namespace hyperslab::ops::cuda {

/// The parts of a call of attention_forward or attention_backward that decide who computes it.
struct AttentionProblem {
  HeadLayout layout;
  AttentionScores scores;
  Dim T;
  bool deterministic;  ///< forward: false, since all of its kernels are
};

/// cuDNN has no scores that are capped, and no queries that see their document alone.
[[nodiscard]] inline bool is_beyond_cudnn(const AttentionScores& scores) {
  return scores.softcap > 0 || static_cast<bool>(scores.first_keys);
}

/// Warpgroups are faster than cuDNN with heads of 64 elements up to some context
/// (analysis/results/attention-h100.txt). cuDNN's deterministic backward pass is the slower one,
/// and keeps the gradients of all scores.
[[nodiscard]] inline Reason suits_attention_warpgroups(const AttentionProblem& problem) {
  const AttentionMask& mask = problem.scores.mask;
  if (mask.kind != AttentionMask::Kind::causal) return "mask is not causal";
  if (!has_warpgroup_width(problem.layout)) return "head width is not 64 or 128";
  if (problem.deterministic || is_beyond_cudnn(problem.scores)) return {};
  if (problem.layout.head_width != 64) return "cuDNN is faster with heads of 128";
  if (problem.T > 2048) return "cuDNN is faster beyond 2048 tokens";
  if (mask.window > 0) return "cuDNN is faster with a window";
  return {};
}

[[nodiscard]] inline Reason suits_attention_tiles(const AttentionProblem& problem) {
  if (is_beyond_cudnn(problem.scores)) return {};
  return "slower than cuDNN without caps and documents";
}

[[nodiscard]] inline Reason suits_attention_cudnn(const AttentionProblem& problem) {
  if (problem.scores.softcap > 0) return "scores are capped";
  if (problem.scores.first_keys) return "queries see their document alone";
  return {};
}

/// The backward passes of tiles and cuDNN, then the column sums that are the bias's gradient.
void tiles_and_bias_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView dout, const AttentionSaved& saved,
                             const AttentionGradients& gradients);
void cudnn_and_bias_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView dout, const AttentionSaved& saved,
                             const AttentionGradients& gradients);

using AttentionForwardKernel = Kernel<AttentionProblem, decltype(ops::attention_forward)>;
inline constexpr std::array kAttentionForward = {
    AttentionForwardKernel{"warpgroups", Needs::warpgroups, suits_attention_warpgroups,
                           launch_of<warpgroup_attention_forward>(),
                           "attention/warpgroup_forward.cu", "attend_warpgroup_kernel"},
    AttentionForwardKernel{"tiles", Needs::any_gpu, suits_attention_tiles,
                           launch_of<tiled_attention_forward>(), "attention/tiled_forward.cu",
                           "attend_tiles_kernel"},
    AttentionForwardKernel{"cudnn", Needs::any_gpu, suits_attention_cudnn,
                           launch_of<cudnn_attention_forward>()}};

using AttentionBackwardKernel = Kernel<AttentionProblem, decltype(ops::attention_backward)>;
inline constexpr std::array kAttentionBackward = {
    AttentionBackwardKernel{"warpgroups", Needs::warpgroups, suits_attention_warpgroups,
                            launch_of<warpgroup_attention_backward>(),
                            "attention/warpgroup_backward.cu",
                            "attend_warpgroup_queries_kernel attend_warpgroup_keys_kernel"},
    AttentionBackwardKernel{
        "tiles", Needs::any_gpu, suits_attention_tiles, launch_of<tiles_and_bias_backward>(),
        "attention/tiled_backward.cu",
        "attend_tiles_dots_kernel attend_tiles_queries_kernel attend_tiles_keys_kernel"},
    AttentionBackwardKernel{"cudnn", Needs::any_gpu, suits_attention_cudnn,
                            launch_of<cudnn_and_bias_backward>()}};

}  // namespace hyperslab::ops::cuda
