// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/optimizer.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
void adamw(Context& ctx, const AdamWConstants& constants, CView decay, const StepState* state,
           View master, CView gradient, View exp_avg, View exp_avg_sq, View value) {
  require_here(ctx, master, "adamw master");
  const DType dtype = statistic_dtype(master.dtype());
  const Dim size = master.numel();
  require_operand(ctx, master, {size}, dtype, "adamw master");
  require_operand(ctx, gradient, {size}, dtype, "adamw gradient");
  require_operand(ctx, exp_avg, {size}, dtype, "adamw exp_avg");
  require_operand(ctx, exp_avg_sq, {size}, dtype, "adamw exp_avg_sq");
  if (value) require_operand(ctx, value, {size}, value.dtype(), "adamw value");
  require(state != nullptr || ctx.device() == Device::meta, "adamw state: is absent");
  const Dim granules = (size + kDecayGranule - 1) / kDecayGranule;
  require_operand(ctx, decay, {granules}, DType::f32, "adamw decay");
  if (ctx.device() == Device::meta) {
    const double bytes_per_element = 7.0 * static_cast<double>(size_of(dtype)) +
                                     (value ? static_cast<double>(size_of(value.dtype())) : 0);
    ctx.add_work(
        "adamw", 15.0 * static_cast<double>(size),
        bytes_per_element * static_cast<double>(size) + static_cast<double>(decay.bytes()));
    return;
  }
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) {
      return cuda::adamw(ctx, constants, decay, state, master, gradient, exp_avg, exp_avg_sq,
                         value);
    }
  }
  cpu::adamw(ctx, constants, decay, state, master, gradient, exp_avg, exp_avg_sq, value);
}

void add_norm_squared(Context& ctx, CView gradient, View sums) {
  require_here(ctx, gradient, "add_norm_squared gradient");
  require_operand(ctx, gradient, {gradient.numel()}, statistic_dtype(gradient.dtype()),
                  "add_norm_squared gradient");
  require_sums(ctx, sums, "add_norm_squared sums");
  if (on_meta(ctx, "add_norm_squared", 3.0 * static_cast<double>(gradient.numel()),
              {gradient, sums},
              workspace_for(ctx, cpu::sum_of_squares_workspace(gradient.numel()),
                            cuda::sum_of_squares_workspace(gradient.numel())))) {
    return;
  }
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::add_norm_squared(ctx, gradient, sums);
  }
  cpu::add_norm_squared(ctx, gradient, sums);
}

void begin_step(Context& ctx, const StepInput& input, StepState* state, View sums) {
  require_sums(ctx, sums, "begin_step sums");
  if (on_meta(ctx, "begin_step", 0, {sums})) return;
  require(state != nullptr, "begin_step state: is absent");
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::begin_step(ctx, input, state, sums);
  }
  cpu::begin_step(ctx, input, state, sums);
}

void finalize_step(Context& ctx, const FinalizeConstants& constants, CView sums, StepState* state,
                   StepResult* results) {
  require_sums(ctx, sums, "finalize_step sums");
  if (on_meta(ctx, "finalize_step", 0, {sums})) return;
  require(state != nullptr, "finalize_step state: is absent");
  require(results != nullptr, "finalize_step results: is absent");
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda)
      return cuda::finalize_step(ctx, constants, sums, state, results);
  }
  cpu::finalize_step(ctx, constants, sums, state, results);
}

}  // namespace hyperslab::ops
