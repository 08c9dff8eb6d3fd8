// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/optimizer.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

/// The words of messages and of the ledger; nothing is put together in a step.
struct UpdateOp {
  const char* name;
  const char* master;
  const char* gradient;
  const char* value;
  const char* decay;
  const char* rate;
  const char* no_state;
  double flops_per_element;
};
constexpr UpdateOp kAdamW = {"adamw",       "adamw master", "adamw gradient",         "adamw value",
                             "adamw decay", "adamw rate",   "adamw state: is absent", 15};
constexpr UpdateOp kSgd = {"sgd",
                           "sgd master",
                           "sgd gradient",
                           "sgd value",
                           "sgd decay",
                           "sgd rate: every parameter has the same",
                           "sgd state: is absent",
                           7};

void check_update(Context& ctx, const UpdateOp& op, const StepState* state,
                  const UpdateOperands& operands) {
  require_here(ctx, operands.master, op.master);
  const DType dtype = statistic_dtype(operands.master.dtype());
  const Dim size = operands.master.numel();
  require_operand(ctx, operands.master, {size}, dtype, op.master);
  const bool narrow = operands.gradient && operands.gradient.dtype() == DType::bf16;
  require_gradient(ctx, operands.gradient, {size}, narrow ? DType::bf16 : dtype, op.gradient);
  if (operands.value) {
    require_operand(ctx, operands.value, {size}, operands.value.dtype(), op.value);
  }
  require(state != nullptr || ctx.device() == Device::meta, op.no_state);
  const Dim granules = (size + kDecayGranule - 1) / kDecayGranule;
  require_operand(ctx, operands.decay, {granules}, DType::f32, op.decay);
  if (operands.rate) require_operand(ctx, operands.rate, {granules}, DType::f32, op.rate);
}

void check_moment(Context& ctx, const UpdateOperands& operands, CView moment, DType dtype,
                  const char* what) {
  require_operand(ctx, moment, {operands.master.numel()}, dtype, what);
}

/// Masters and every moment are read and written, gradients read, values written.
void add_update_work(Context& ctx, const UpdateOp& op, const UpdateOperands& operands, int moments,
                     DType moment_dtype) {
  const auto size = static_cast<double>(operands.master.numel());
  const auto wide = static_cast<double>(size_of(operands.master.dtype()));
  const double value = operands.value ? static_cast<double>(size_of(operands.value.dtype())) : 0.0;
  const auto moment = static_cast<double>(size_of(moment_dtype));
  const auto gradient = static_cast<double>(size_of(operands.gradient.dtype()));
  const double bytes = 2.0 * wide + gradient + 2.0 * moments * moment + value;
  add_work(ctx, op.name,
           {op.flops_per_element * size,
            bytes * size + static_cast<double>(operands.decay.bytes() + operands.rate.bytes())},
           {operands.master, operands.gradient, operands.value});
}

}  // namespace

void adamw(Context& ctx, const AdamWConstants& constants, const StepState* state,
           const UpdateOperands& operands, View exp_avg, View exp_avg_sq) {
  check_update(ctx, kAdamW, state, operands);
  const bool narrow =
      exp_avg.dtype() == DType::bf16 && operands.master.dtype() == DType::f32;  // moments
  const DType moment = narrow ? DType::bf16 : statistic_dtype(operands.master.dtype());
  check_moment(ctx, operands, exp_avg, moment, "adamw exp_avg");
  check_moment(ctx, operands, exp_avg_sq, moment, "adamw exp_avg_sq");
  if (ctx.device() == Device::meta) return add_update_work(ctx, kAdamW, operands, 2, moment);
  begin_op(ctx, kAdamW.name);
  dispatch<cuda::adamw, cpu::adamw>(ctx, constants, state, operands, exp_avg, exp_avg_sq);
}

void sgd(Context& ctx, float momentum, const StepState* state, const UpdateOperands& operands,
         View momentum_buffer) {
  check_update(ctx, kSgd, state, operands);
  require(!operands.rate, kSgd.rate);
  const DType moment = statistic_dtype(operands.master.dtype());
  check_moment(ctx, operands, momentum_buffer, moment, "sgd momentum_buffer");
  if (ctx.device() == Device::meta) return add_update_work(ctx, kSgd, operands, 1, moment);
  begin_op(ctx, kSgd.name);
  dispatch<cuda::sgd, cpu::sgd>(ctx, momentum, state, operands, momentum_buffer);
}

void add_norm_squared(Context& ctx, CView gradient, View sums) {
  require_here(ctx, gradient, "add_norm_squared gradient");
  require_gradient(ctx, gradient, {gradient.numel()}, gradient.dtype(),
                   "add_norm_squared gradient");
  require_sums(ctx, sums, "add_norm_squared sums");
  if (on_meta(ctx, "add_norm_squared", 3.0 * static_cast<double>(gradient.numel()),
              {gradient, sums},
              workspace_for(ctx, cpu::sum_of_squares_workspace(gradient.numel()),
                            cuda::sum_of_squares_workspace(gradient.numel())))) {
    return;
  }
  dispatch<cuda::add_norm_squared, cpu::add_norm_squared>(ctx, gradient, sums);
}

void begin_step(Context& ctx, const StepInput& input, StepState* state, View sums) {
  require_sums(ctx, sums, "begin_step sums");
  if (on_meta(ctx, "begin_step", 0, {sums})) return;
  require(state != nullptr, "begin_step state: is absent");
  dispatch<cuda::begin_step, cpu::begin_step>(ctx, input, state, sums);
}

void finalize_step(Context& ctx, const FinalizeConstants& constants, CView sums, StepState* state,
                   StepResult* results) {
  require_sums(ctx, sums, "finalize_step sums");
  if (on_meta(ctx, "finalize_step", 0, {sums})) return;
  require(state != nullptr, "finalize_step state: is absent");
  require(results != nullptr, "finalize_step results: is absent");
  dispatch<cuda::finalize_step, cpu::finalize_step>(ctx, constants, sums, state, results);
}

}  // namespace hyperslab::ops
