// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/muon.hpp"

#include <algorithm>
#include <utility>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

double product_flops(Dim batch, Dim M, Dim N, Dim K) {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(M) * static_cast<double>(N) *
         static_cast<double>(K);
}

}  // namespace

void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction) {
  require_here(ctx, gradient, "muon gradient");
  const DType dtype = statistic_dtype(gradient.dtype());
  const Dim size = gradient.numel();
  require_gradient(ctx, gradient, {size}, gradient.dtype(), "muon gradient");
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

void muon_update(Context& ctx, float decay, DecayRule rule, const StepState* state,
                 const UpdateOperands& operands) {
  require_here(ctx, operands.master, "muon master");
  const DType dtype = statistic_dtype(operands.master.dtype());
  const Dim size = operands.master.numel();
  require_operand(ctx, operands.master, {size}, dtype, "muon master");
  require_operand(ctx, operands.gradient, {size}, dtype, "muon direction");
  if (operands.value) {
    require_operand(ctx, operands.value, {size}, operands.value.dtype(), "muon value");
  }
  require(!operands.rate, "muon rate: every parameter has the same");
  if (on_meta(ctx, "muon_update", 4.0 * static_cast<double>(size),
              {operands.master, operands.master, operands.gradient, operands.value})) {
    return;
  }
  require(state != nullptr, "muon state: is absent");
  dispatch<cuda::muon_update, cpu::muon_update>(ctx, decay, rule, state, operands);
}

void normalize_matrices(Context& ctx, CView x, View y) {
  require_here(ctx, x, "normalize_matrices x");
  const auto [batch, rows, columns] = x.dims<3>("normalize_matrices x");
  require_operand(ctx, x, x.shape(), statistic_dtype(x.dtype()), "normalize_matrices x");
  const DType dtype = y.dtype() == DType::bf16 ? DType::bf16 : x.dtype();
  require_operand(ctx, y, x.shape(), dtype, "normalize_matrices y");
  if (on_meta(ctx, "normalize_matrices", 3.0 * static_cast<double>(x.numel()), {x, x, y},
              workspace_for(ctx, cpu::sum_of_squares_workspace(rows * columns),
                            cuda::normalize_matrices_workspace(batch)))) {
    return;
  }
  dispatch<cuda::normalize_matrices, cpu::normalize_matrices>(ctx, x, y);
}

void matmul_gram(Context& ctx, CView x, View gram) {
  require_here(ctx, x, "matmul_gram x");
  const auto [batch, rows, columns] = x.dims<3>("matmul_gram x");
  const Dim side = std::min(rows, columns);
  require_operand(ctx, gram, {batch, side, side}, x.dtype(), "matmul_gram gram");
  if (on_meta(ctx, "matmul_gram", product_flops(batch, side, side, std::max(rows, columns)),
              {x, gram})) {
    return;
  }
  dispatch<cuda::matmul_gram, cpu::matmul_gram>(ctx, x, gram);
}

void matmul_add(Context& ctx, const ProductScales& scales, CView a, CView b, CView d, View c) {
  require_here(ctx, a, "matmul_add a");
  const auto [batch, M, K] = a.dims<3>("matmul_add a");
  const Dim N = b.shape().back();
  require_operand(ctx, b, {batch, K, N}, a.dtype(), "matmul_add b");
  require_operand(ctx, d, {batch, M, N}, a.dtype(), "matmul_add d");
  require_operand(ctx, c, {batch, M, N}, a.dtype(), "matmul_add c");
  if (on_meta(ctx, "matmul_add", product_flops(batch, M, N, K), {a, b, d, c})) return;
  dispatch<cuda::matmul_add, cpu::matmul_add>(ctx, scales, a, b, d, c);
}

View orthogonalize(Context& ctx, CView x, const OrthogonalizeSpace& space) {
  const auto [batch, rows, columns] = x.dims<3>("orthogonalize x");
  const bool wide = rows <= columns;
  const Dim side = std::min(rows, columns);
  const auto [a, b, c] = kNewtonSchulz;
  const auto part = [](const View& all, const Shape& shape) {
    return all.slice(0, shape.numel()).reshaped(shape);
  };
  View now = part(space.x, x.shape());
  View next = part(space.other, x.shape());
  const View gram = part(space.gram, {batch, side, side});
  const View polynomial = part(space.polynomial, {batch, side, side});
  normalize_matrices(ctx, x, now);
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    // A tall matrix has the smaller product x^T x, and the polynomial on its right.
    matmul_gram(ctx, now, gram);
    matmul_add(ctx, {c, b}, gram, gram, gram, polynomial);
    matmul_add(ctx, {1, a}, wide ? polynomial : now, wide ? now : polynomial, now, next);
    std::swap(now, next);
  }
  return now;
}

}  // namespace hyperslab::ops
