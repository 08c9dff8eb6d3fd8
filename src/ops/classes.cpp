// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/classes.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr double kClassFlops = 12;  // a logit's largest, exponential, sum and gradient

double elements(CView view) { return view ? static_cast<double>(view.numel()) : 0; }

void require_rows_of(const Context& ctx, const PooledRows& rows, CView stream,
                     std::string_view what) {
  require_here(ctx, stream, what);
  const Dim here = stream.numel() / std::max<Dim>(1, stream.shape().back());
  require(rows.B >= 0 && rows.T > 0 && rows.first >= 0 && rows.first + here <= rows.B * rows.T,
          "pooled rows outside the microbatch");
}

}  // namespace

void patch_tokens_forward(Context& ctx, CView patches, CView class_token, CView positions, View y) {
  require_here(ctx, patches, "patch_tokens_forward patches");
  const auto [B, N, C] = patches.dims<3>("patch_tokens_forward patches");
  const Dim T = N + (class_token ? 1 : 0);
  require_operand(ctx, y, {B, T, C}, patches.dtype(), "patch_tokens_forward y");
  if (class_token) {
    require_operand(ctx, class_token, {C}, patches.dtype(), "patch_tokens_forward class_token");
  }
  if (positions) {
    require_operand(ctx, positions, {T, C}, patches.dtype(), "patch_tokens_forward positions");
  }
  if (on_meta(ctx, "patch_tokens_forward", elements(y), {patches, class_token, positions, y})) {
    return;
  }
  dispatch<cuda::patch_tokens_forward, cpu::patch_tokens_forward>(ctx, patches, class_token,
                                                                  positions, y);
}

void patch_tokens_backward(Context& ctx, CView dy, Accumulate accumulate, View dpatches,
                           View dclass_token, View dpositions) {
  require_here(ctx, dy, "patch_tokens_backward dy");
  const auto [B, T, C] = dy.dims<3>("patch_tokens_backward dy");
  require_here(ctx, dpatches, "patch_tokens_backward dpatches");
  const Dim N = dpatches.dims<3>("patch_tokens_backward dpatches")[1];
  require(N == T || N + 1 == T, "patch_tokens_backward dpatches: expected T or T - 1 patches");
  require_operand(ctx, dpatches, {B, N, C}, dy.dtype(), "patch_tokens_backward dpatches");
  if (dclass_token) {
    require(N + 1 == T, "patch_tokens_backward dclass_token: there is no class token");
    require_gradient(ctx, dclass_token, {C}, dy.dtype(), "patch_tokens_backward dclass_token");
  }
  if (dpositions) {
    require_gradient(ctx, dpositions, {T, C}, dy.dtype(), "patch_tokens_backward dpositions");
  }
  if (on_meta(ctx, "patch_tokens_backward", elements(dy),
              {dy, dpatches, dclass_token, dpositions})) {
    return;
  }
  dispatch<cuda::patch_tokens_backward, cpu::patch_tokens_backward>(ctx, dy, accumulate, dpatches,
                                                                    dclass_token, dpositions);
}

void sincos2d_table(Context& ctx, Dim grid, View table) {
  require_here(ctx, table, "sincos2d_table table");
  const auto [T, C] = table.dims<2>("sincos2d_table table");
  require(C % 4 == 0 && T >= grid * grid, "sincos2d_table table: a width that 4 divides");
  if (on_meta(ctx, "sincos2d_table", 20 * elements(table), {table})) return;
  dispatch<cuda::sincos2d_table, cpu::sincos2d_table>(ctx, grid, table);
}

void pool_rows_forward(Context& ctx, const PooledRows& rows, CView residual, CView delta,
                       View pooled) {
  require_rows_of(ctx, rows, residual, "pool_rows_forward residual");
  if (delta) {
    require_operand(ctx, delta, residual.shape(), residual.dtype(), "pool_rows_forward delta");
  }
  require_operand(ctx, pooled, {rows.B, residual.shape().back()}, statistic_dtype(residual.dtype()),
                  "pool_rows_forward pooled");
  // Only the pooled rows of the stream are read.
  const double read = elements(pooled) * static_cast<double>(rows.pooled());
  if (on_meta(ctx, "pool_rows_forward", 2 * read,
              {rows.token ? CView(pooled) : residual, pooled})) {
    return;
  }
  dispatch<cuda::pool_rows_forward, cpu::pool_rows_forward>(ctx, rows, residual, delta, pooled);
}

void pool_rows_backward(Context& ctx, const PooledRows& rows, CView dpooled, View dx) {
  require_rows_of(ctx, rows, dx, "pool_rows_backward dx");
  require_here(ctx, dpooled, "pool_rows_backward dpooled");
  require_shape(dpooled, {rows.B, dx.shape().back()}, "pool_rows_backward dpooled");
  if (on_meta(ctx, "pool_rows_backward", elements(dx), {dpooled, dx})) return;
  dispatch<cuda::pool_rows_backward, cpu::pool_rows_backward>(ctx, rows, dpooled, dx);
}

void class_cross_entropy(Context& ctx, const ClassRows& rows, double smoothing,
                         const StepState* state, WithGradient gradient, View sums) {
  require_here(ctx, rows.logits, "class_cross_entropy logits");
  const auto [B, columns] = rows.logits.dims<2>("class_cross_entropy logits");
  require(rows.classes > 0 && rows.classes <= columns && smoothing >= 0 && smoothing < 1,
          "class_cross_entropy logits: fewer columns than classes");
  require_operand(ctx, rows.labels, {B, 2}, DType::i32, "class_cross_entropy labels");
  require_operand(ctx, rows.weights, {B}, DType::f32, "class_cross_entropy weights");
  require_sums(ctx, sums, "class_cross_entropy sums");
  require(gradient == WithGradient::no || state != nullptr || ctx.device() == Device::meta,
          "class_cross_entropy state: the gradient needs the step's state");
  const std::size_t workspace = workspace_for(ctx, cpu::class_cross_entropy_workspace(B),
                                              cuda::class_cross_entropy_workspace(B));
  if (on_meta(ctx, "class_cross_entropy", kClassFlops * elements(rows.logits),
              {rows.logits, rows.labels, rows.weights, sums}, workspace)) {
    return;
  }
  dispatch<cuda::class_cross_entropy, cpu::class_cross_entropy>(ctx, rows, smoothing, state,
                                                                gradient, sums);
}

}  // namespace hyperslab::ops
