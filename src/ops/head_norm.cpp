// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/head_norm.hpp"

#include "backend.hpp"
#include "checks.hpp"

namespace hyperslab::ops {
namespace {

/// Query and key heads together.
Dim normed_heads(const HeadLayout& layout) { return layout.heads + layout.kv_heads; }

void require_operands(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                      CView qkv, const HeadNormSaved& saved) {
  require_here(ctx, qkv, "head_norm qkv");
  const auto [B, T, packed] = qkv.dims<3>("head_norm qkv");
  require(packed == layout.packed_width(), "head_norm qkv: is not of this layout");
  require_operand(ctx, weights.query, {layout.head_width}, qkv.dtype(), "head_norm query weight");
  require_operand(ctx, weights.key, {layout.head_width}, qkv.dtype(), "head_norm key weight");
  if (!saved.heads && !saved.rstd) return;
  const Dim heads = normed_heads(layout);
  require_operand(ctx, saved.heads, {B, T, heads * layout.head_width}, qkv.dtype(),
                  "head_norm saved heads");
  require_operand(ctx, saved.rstd, {B, T, heads}, statistic_dtype(qkv.dtype()), "head_norm rstd");
}

double elements(const HeadLayout& layout, CView qkv) {
  return static_cast<double>(leading(qkv.shape()) * normed_heads(layout) * layout.head_width);
}

}  // namespace

void head_norm_forward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                       View qkv, const HeadNormSaved& saved) {
  require_operands(ctx, layout, weights, qkv, saved);
  if (on_meta(ctx, "head_norm_forward", 4 * elements(layout, qkv),
              {qkv, weights.query, weights.key, saved.heads, saved.rstd})) {
    return;
  }
  dispatch<cuda::head_norm_forward, cpu::head_norm_forward>(ctx, layout, weights, qkv, saved);
}

void head_norm_backward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                        const HeadNormSaved& saved, View dqkv, const HeadNormGradients& gradients) {
  require_operands(ctx, layout, weights, dqkv, saved);
  require(static_cast<bool>(saved.heads), "head_norm_backward: forward has saved nothing");
  if (gradients.query) {
    const Shape width = {layout.head_width};
    require_gradient(ctx, gradients.query, width, dqkv.dtype(), "head_norm dquery");
    require_gradient(ctx, gradients.key, width, dqkv.dtype(), "head_norm dkey");
  }
  plan_partials(ctx, "head_norm_backward", cuda::head_norm_partials(layout, leading(dqkv.shape())));
  if (on_meta(
          ctx, "head_norm_backward", 10 * elements(layout, dqkv),
          {dqkv, weights.query, weights.key, saved.heads, saved.rstd, gradients.query,
           gradients.key},
          workspace_for(
              ctx, cpu::head_norm_workspace(ctx.threads(), layout.head_width, dqkv.dtype()), 0))) {
    return;
  }
  dispatch<cuda::head_norm_backward, cpu::head_norm_backward>(ctx, layout, weights, saved, dqkv,
                                                              gradients);
}

}  // namespace hyperslab::ops
