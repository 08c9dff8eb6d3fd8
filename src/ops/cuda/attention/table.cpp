// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <cstdint>
#include <string>

#include "backend.hpp"
#include "cuda/tools/reduce.hpp"
#include "cuda/tools/warpgroup.hpp"
#include "hyperslab/core/error.hpp"
#include "sinks.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr Dim kMaxHeadWidth = 256;
constexpr Dim kHeadWidthUnit = 8;
constexpr std::uintptr_t kAlignment = 16;  // bytes: the frontend's assumption on operands

void require_supported(const HeadLayout& layout, DType dtype, const char* op) {
  const bool width_good =
      layout.head_width % kHeadWidthUnit == 0 && layout.head_width <= kMaxHeadWidth;
  if ((dtype == DType::bf16 || dtype == DType::f16) && width_good) return;
  throw Error(ExitCode::usage,
              std::string(op) +
                  ": fused attention takes bf16 or f16 and head widths that are multiples of " +
                  std::to_string(kHeadWidthUnit) + " up to " + std::to_string(kMaxHeadWidth) +
                  ", found " + std::string(name_of(dtype)) + " and " +
                  std::to_string(layout.head_width) + "; set model.attention: reference");
}

/// Heads begin at multiples of kHeadWidthUnit elements, so a packed view's parts follow its begin.
void require_aligned(CView view, const char* what) {
  const auto past = reinterpret_cast<std::uintptr_t>(view.raw()) % kAlignment;
  if (past == 0) return;
  throw Error(ExitCode::internal, std::string(what) + ": begins " + std::to_string(past) +
                                      " bytes past a multiple of " + std::to_string(kAlignment) +
                                      ", and cuDNN wants addresses that are such multiples");
}

/// dbias (+)= column sums of dqkv, if it is asked for.
void sum_bias(Context& ctx, const AttentionGradients& gradients) {
  const auto& [dqkv, dbias, accumulate_bias] = gradients;
  if (dbias) column_sums(ctx, dqkv, accumulate_bias, dbias);
}

}  // namespace

void tiles_and_bias_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView dout, const AttentionSaved& saved,
                             const AttentionGradients& gradients) {
  tiled_attention_backward(ctx, layout, scores, dout, saved, gradients.dqkv);
  sum_bias(ctx, gradients);
}

void cudnn_and_bias_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView dout, const AttentionSaved& saved,
                             const AttentionGradients& gradients) {
  cudnn_attention_backward(ctx, layout, scores, dout, saved, gradients.dqkv);
  sum_bias(ctx, gradients);
}

void attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                       CView qkv, View out, View log_sum_exp) {
  require_supported(layout, qkv.dtype(), "attention_forward");
  const Dim T = qkv.shape()[1];
  if (qkv.shape()[0] == 0 || T == 0) return;
  require_aligned(qkv, "attention_forward qkv");
  require_aligned(out, "attention_forward out");
  require_aligned(log_sum_exp, "attention_forward log_sum_exp");
  choose(kAttentionForward, AttentionProblem{layout, scores, T, false}, features_of_kernels())
      .launch(ctx, layout, scores, qkv, out, log_sum_exp);
  if (scores.sinks.logits) add_sinks(ctx, layout, scores.sinks, out, log_sum_exp);
}

void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                        CView dout, const AttentionSaved& saved,
                        const AttentionGradients& gradients) {
  const auto& [qkv, out, log_sum_exp] = saved;
  require_supported(layout, qkv.dtype(), "attention_backward");
  const Dim T = qkv.shape()[1];
  if (qkv.shape()[0] == 0 || T == 0) return sum_bias(ctx, gradients);
  require_aligned(dout, "attention_backward dout");
  require_aligned(qkv, "attention_backward qkv");
  require_aligned(out, "attention_backward out");
  require_aligned(log_sum_exp, "attention_backward log_sum_exp");
  require_aligned(gradients.dqkv, "attention_backward dqkv");
  choose(kAttentionBackward, AttentionProblem{layout, scores, T, ctx.deterministic()},
         features_of_kernels())
      .launch(ctx, layout, scores, dout, saved, gradients);
}

}  // namespace hyperslab::ops::cuda
