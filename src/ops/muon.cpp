// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"

#include <algorithm>
#include <utility>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction) {
  require_here(ctx, gradient, "muon gradient");
  const DType dtype = statistic_dtype(gradient.dtype());
  const Dim size = gradient.numel();
  require_operand(ctx, gradient, {size}, dtype, "muon gradient");
  require_operand(ctx, average, {size}, dtype, "muon average");
  require_operand(ctx, direction, {size}, dtype, "muon direction");
  if (on_meta(ctx, "muon_direction", 7.0 * static_cast<double>(size),
              {gradient, average, average, direction})) {
    return;
  }
  require(state != nullptr, "muon state: is absent");
  dispatch<cuda::muon_direction, cpu::muon_direction>(ctx, momentum, state, gradient, average,
                                                      direction);
}

void muon_update(Context& ctx, float scale, float decay, const StepState* state,
                 const UpdateOperands& operands) {
  require_here(ctx, operands.master, "muon master");
  const DType dtype = statistic_dtype(operands.master.dtype());
  const Dim size = operands.master.numel();
  require_operand(ctx, operands.master, {size}, dtype, "muon master");
  require_operand(ctx, operands.gradient, {size}, dtype, "muon direction");
  if (operands.value) {
    require_operand(ctx, operands.value, {size}, operands.value.dtype(), "muon value");
  }
  if (on_meta(ctx, "muon_update", 4.0 * static_cast<double>(size),
              {operands.master, operands.master, operands.gradient, operands.value})) {
    return;
  }
  require(state != nullptr, "muon state: is absent");
  dispatch<cuda::muon_update, cpu::muon_update>(ctx, scale, decay, state, operands);
}

void scale(Context& ctx, float scale, CView x, View y) {
  require_here(ctx, x, "scale x");
  require_operand(ctx, x, x.shape(), statistic_dtype(x.dtype()), "scale x");
  require_operand(ctx, y, x.shape(), x.dtype(), "scale y");
  if (on_meta(ctx, "scale", static_cast<double>(x.numel()), {x, y})) return;
  dispatch<cuda::scale, cpu::scale>(ctx, scale, x, y);
}

void divide_by_norm(Context& ctx, CView sums, View x) {
  require_here(ctx, x, "divide_by_norm x");
  require_operand(ctx, x, x.shape(), statistic_dtype(x.dtype()), "divide_by_norm x");
  require_operand(ctx, sums, {kSumCount}, x.dtype(), "divide_by_norm sums");
  if (on_meta(ctx, "divide_by_norm", static_cast<double>(x.numel()), {sums, x, x})) return;
  dispatch<cuda::divide_by_norm, cpu::divide_by_norm>(ctx, sums, x);
}

View orthogonalize(Context& ctx, View x, const OrthogonalizeSpace& space) {
  const auto [rows, columns] = x.dims<2>("orthogonalize x");
  const bool wide = rows <= columns;
  const Dim side = std::min(rows, columns);
  const auto [a, b, c] = kNewtonSchulz;
  View other = space.other.slice(0, rows * columns).reshaped({rows, columns});
  const View gram = space.gram.slice(0, side * side).reshaped({side, side});
  const View polynomial = space.polynomial.slice(0, side * side).reshaped({side, side});
  fill(ctx, 0, space.sums);
  add_norm_squared(ctx, x.flat(), space.sums);
  divide_by_norm(ctx, space.sums, x);
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    // Of a tall matrix the smaller product is x^T x, and the polynomial stands at the right.
    matmul(ctx, x, wide ? Trans::no : Trans::yes, x, wide ? Trans::yes : Trans::no, Accumulate::no,
           gram);
    scale(ctx, b, gram, polynomial);
    matmul_columns(ctx, all_columns(CView(gram)), all_columns(CView(gram)), c, Accumulate::yes,
                   all_columns(polynomial));
    scale(ctx, a, x, other);
    const View left = wide ? polynomial : x;
    const View right = wide ? x : polynomial;
    matmul(ctx, left, Trans::no, right, Trans::no, Accumulate::yes, other);
    std::swap(x, other);
  }
  return x;
}

}  // namespace hyperslab::ops
