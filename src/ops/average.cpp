// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/average.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {

void average_weights(Context& ctx, const AverageConstants& constants, const StepState* state,
                     CView master, View average) {
  require_here(ctx, master, "average_weights master");
  const DType dtype = statistic_dtype(master.dtype());
  const Shape flat = {master.numel()};
  require_operand(ctx, master, flat, dtype, "average_weights master");
  require_operand(ctx, average, flat, dtype, "average_weights average");
  const double flops = 3.0 * static_cast<double>(master.numel());
  if (on_meta(ctx, "average_weights", flops, {master, average, average})) return;  // read, written
  require(state != nullptr, "average_weights state: is absent");
  dispatch<cuda::average_weights, cpu::average_weights>(ctx, constants, state, master, average);
}

void exchange(Context& ctx, View a, View b) {
  require_here(ctx, a, "exchange a");
  const DType dtype = statistic_dtype(a.dtype());
  require_operand(ctx, a, {a.numel()}, dtype, "exchange a");
  require_operand(ctx, b, {a.numel()}, dtype, "exchange b");
  if (on_meta(ctx, "exchange", 0, {a, a, b, b})) return;
  dispatch<cuda::exchange, cpu::exchange>(ctx, a, b);
}

}  // namespace hyperslab::ops
