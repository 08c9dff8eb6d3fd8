// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/norm.hpp"

#include "backend.hpp"
#include "checks.hpp"

namespace hyperslab::ops {

void add_norm_forward(Context& ctx, NormKind kind, const NormOperands& operands,
                      const NormResults& results) {
  const auto& [residual, delta, weight, bias, eps] = operands;
  const auto& [sum, y, mean, rstd] = results;
  require_here(ctx, residual, "add_norm_forward residual");
  const DType dtype = residual.dtype();
  const DType statistic = statistic_dtype(dtype);
  const Dim C = last(residual, "add_norm_forward residual");
  const Dim rows = leading(residual.shape());
  if (delta) require_rows(ctx, delta, rows, C, dtype, "add_norm_forward delta");
  if (delta || sum) require_rows(ctx, sum, rows, C, dtype, "add_norm_forward sum");
  require_rows(ctx, y, rows, C, dtype, "add_norm_forward y");
  if (kind != NormKind::none) {
    require_operand(ctx, weight, {C}, dtype, "add_norm_forward weight");
    require_count(ctx, rstd, rows, statistic, "add_norm_forward rstd");
  }
  if (kind == NormKind::layernorm) {
    if (bias) require_operand(ctx, bias, {C}, dtype, "add_norm_forward bias");
    require_count(ctx, mean, rows, statistic, "add_norm_forward mean");
  }
  const double flops = 8.0 * static_cast<double>(residual.numel());
  if (on_meta(ctx, "add_norm_forward", flops,
              {residual, delta, weight, bias, sum, y, mean, rstd})) {
    return;
  }
  dispatch<cuda::add_norm_forward, cpu::add_norm_forward>(ctx, kind, operands, results);
}

void norm_backward(Context& ctx, NormKind kind, CView dy, const NormSaved& saved,
                   const NormGradients& gradients) {
  const auto& [sum, weight, mean, rstd] = saved;
  const auto& [dsum, accumulate_input, dweight, dbias, accumulate_weight, arriving, leaving] =
      gradients;
  require_here(ctx, dy, "norm_backward dy");
  const DType dtype = dy.dtype();
  const DType statistic = statistic_dtype(dtype);
  const Dim C = last(dy, "norm_backward dy");
  const Dim rows = leading(dy.shape());
  require_rows(ctx, dsum, rows, C, dtype, "norm_backward dsum");
  if (kind != NormKind::none) {
    require_rows(ctx, sum, rows, C, dtype, "norm_backward sum");
    require_operand(ctx, weight, {C}, dtype, "norm_backward weight");
    require_count(ctx, rstd, rows, statistic, "norm_backward rstd");
    if (dweight) require_gradient(ctx, dweight, {C}, dtype, "norm_backward dweight");
    require(dweight || !dbias, "norm_backward dbias: is given without dweight");
  }
  if (arriving || leaving) {
    require(dweight && accumulate_input == Accumulate::yes && kind != NormKind::none,
            "norm_backward arriving_sums: expected dweight and a residual path beside it");
    require_gradient(ctx, arriving, {C}, dtype, "norm_backward arriving_sums");
    require_gradient(ctx, leaving, {C}, dtype, "norm_backward leaving_sums");
  }
  if (kind == NormKind::layernorm) {
    require_count(ctx, mean, rows, statistic, "norm_backward mean");
    if (dbias) require_gradient(ctx, dbias, {C}, dtype, "norm_backward dbias");
  }
  const double flops = 14.0 * static_cast<double>(dy.numel());
  if (dweight) {
    const auto with_stream = static_cast<bool>(arriving);
    plan_partials(ctx, "norm_backward", cuda::norm_backward_partials(rows, C, with_stream));
  }
  if (on_meta(ctx, "norm_backward", flops,
              {dy, sum, weight, mean, rstd, dsum, dweight, dbias, arriving, leaving},
              workspace_for(ctx, cpu::norm_backward_workspace(ctx.threads(), C, dtype), 0))) {
    return;
  }
  dispatch<cuda::norm_backward, cpu::norm_backward>(ctx, kind, dy, saved, gradients);
}

}  // namespace hyperslab::ops
