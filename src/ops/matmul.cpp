// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/matmul.hpp"

#include <array>
#include <string>

#include "backend.hpp"
#include "checks.hpp"
#include "cuda/products/activation_table.hpp"
#include "cuda/products/linear_table.hpp"
#include "cuda/products/matrix_vector.hpp"
#include "hyperslab/core/error.hpp"
#include "kernel_choice.hpp"

namespace hyperslab::ops {
namespace {

double gemm_flops(Dim M, Dim N, Dim K) {
  return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
}

/// (rows, columns) of op(operand).
Shape size_of_operand(const CColumns& operand) {
  const Dim rows = operand.matrix.shape()[0];
  return operand.trans == Trans::no ? Shape{rows, operand.count} : Shape{operand.count, rows};
}

/// A view of the columns' size, for the op's cost.
template <class AnyView>
CView touched(const BasicColumns<AnyView>& columns) {
  const CView matrix = columns.matrix;
  return {matrix.raw(), matrix.dtype(), matrix.device(), {matrix.shape()[0], columns.count}};
}

template <class AnyView>
void require_columns(const Context& ctx, const BasicColumns<AnyView>& columns,
                     std::string_view what) {
  require_here(ctx, columns.matrix, what);
  const auto [rows, width] = columns.matrix.template dims<2>(what);
  if (columns.first < 0 || columns.count < 0 || columns.first + columns.count > width) {
    throw_shape_error(
        what, columns.matrix.shape(),
        "columns " + std::to_string(columns.first) + "+" + std::to_string(columns.count),
        std::source_location::current());
  }
}

std::string text_of(const cuda::ActivationProblem& problem) {
  return std::to_string(problem.rows) + " x " + std::to_string(problem.depth) + " by " +
         std::to_string(problem.depth) + " x " + std::to_string(problem.columns) + ", " +
         std::string(name_of(problem.activation)) + ", " + std::string(name_of(problem.dtype));
}

}  // namespace

bool cpu_multiplies_bf16() { return cpu::has_bf16_products(); }

void matmul(Context& ctx, CView a, Trans trans_a, CView b, Trans trans_b, Accumulate accumulate,
            View c) {
  require_here(ctx, a, "matmul a");
  require_dtype(ctx, b, a.dtype(), "matmul b");
  const auto [a0, a1] = a.dims<2>("matmul a");
  const Dim M = trans_a == Trans::no ? a0 : a1;
  const Dim K = trans_a == Trans::no ? a1 : a0;
  const auto [b0, b1] = b.dims<2>("matmul b");
  const Dim N = trans_b == Trans::no ? b1 : b0;
  require_shape(b, trans_b == Trans::no ? Shape{K, N} : Shape{N, K}, "matmul b");
  require_here(ctx, c, "matmul c");
  if (c.dtype() != a.dtype()) require_dtype(ctx, c, statistic_dtype(a.dtype()), "matmul c");
  require_shape(c, {M, N}, "matmul c");
  if (on_meta(ctx, "matmul", gemm_flops(M, N, K), {a, b, c})) return;
  dispatch<cuda::matmul, cpu::matmul>(ctx, a, trans_a, b, trans_b, accumulate, c);
}

CColumns all_columns(CView view, Trans trans) {
  return {view.as_matrix(), 0, view.shape().back(), trans};
}
Columns all_columns(View view) { return {view.as_matrix(), 0, view.shape().back()}; }

void matmul_columns(Context& ctx, const CColumns& a, const CColumns& b, float scale,
                    Accumulate accumulate, const Columns& c) {
  require_columns(ctx, a, "matmul_columns a");
  require_columns(ctx, b, "matmul_columns b");
  require_columns(ctx, c, "matmul_columns c");
  require_dtype(ctx, b.matrix, a.matrix.dtype(), "matmul_columns b");
  if (c.matrix.dtype() != a.matrix.dtype()) {
    require_dtype(ctx, c.matrix, statistic_dtype(a.matrix.dtype()), "matmul_columns c");
  }
  const Shape left = size_of_operand(a);
  const Shape right = size_of_operand(b);
  if (right[0] != left[1]) {
    throw_shape_error("matmul_columns b", right, std::to_string(left[1]) + " rows",
                      std::source_location::current());
  }
  const Shape product = {left[0], right[1]};
  require_shape(touched(c), product, "matmul_columns c");
  if (on_meta(ctx, "matmul_columns", gemm_flops(product[0], product[1], left[1]),
              {touched(a), touched(b), touched(c)})) {
    return;
  }
  dispatch<cuda::matmul_columns, cpu::matmul_columns>(ctx, a, b, scale, accumulate, c);
}

namespace {

void linear(Context& ctx, CView x, CView weight, CView bias, Accumulate accumulate, View y) {
  require_here(ctx, x, "linear_forward x");
  require_dtype(ctx, weight, x.dtype(), "linear_forward weight");
  const auto [M, K] = weight.dims<2>("linear_forward weight");
  const Dim rows = leading(x.shape());
  require_rows(ctx, x, rows, K, x.dtype(), "linear_forward x");
  if (bias) require_operand(ctx, bias, {M}, x.dtype(), "linear_forward bias");
  require_rows(ctx, y, rows, M, x.dtype(), "linear_forward y");
  const cuda::LinearProblem problem = {x, weight, accumulate == Accumulate::yes};
  note_kernel(ctx, "linear_forward", cuda::kLinearForward, problem, [&] {
    return std::to_string(rows) + " x " + std::to_string(K) + " by " + std::to_string(K) + " x " +
           std::to_string(M) + ", " + std::string(name_of(x.dtype()));
  });
  if (on_meta(ctx, "linear_forward", gemm_flops(rows, M, K), {x, weight, bias, y})) return;
  if (auto* observer = ctx.product_observer()) observer->product(ctx, x, weight);
  dispatch<cuda::linear_forward, cpu::linear_forward>(ctx, x, weight, bias, accumulate, y);
}

}  // namespace

void linear_forward(Context& ctx, CView x, CView weight, CView bias, View y) {
  linear(ctx, x, weight, bias, Accumulate::no, y);
}

void linear_forward_add(Context& ctx, CView x, CView weight, CView bias, View y) {
  linear(ctx, x, weight, bias, Accumulate::yes, y);
}

void linear_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                               Activation activation, View pre, View y) {
  require(!is_gated(activation), "linear_activation_forward: not for gated activations");
  require_here(ctx, x, "linear_activation_forward x");
  require_dtype(ctx, weight, x.dtype(), "linear_activation_forward weight");
  const auto [M, K] = weight.dims<2>("linear_activation_forward weight");
  const Dim rows = leading(x.shape());
  require_rows(ctx, x, rows, K, x.dtype(), "linear_activation_forward x");
  if (bias) require_operand(ctx, bias, {M}, x.dtype(), "linear_activation_forward bias");
  require_rows(ctx, pre, rows, M, x.dtype(), "linear_activation_forward pre");
  require_rows(ctx, y, rows, M, x.dtype(), "linear_activation_forward y");
  const double flops = gemm_flops(rows, M, K) + 10.0 * static_cast<double>(rows * M);
  const cuda::ActivationProblem problem =
      cuda::activation_forward_problem(ctx, x, weight, bias, activation, pre, y);
  note_kernel(ctx, "linear_activation_forward", cuda::kActivationForward, problem,
              [&] { return text_of(problem); });
  const bool fuses = ctx.planned() == Device::cuda && cuda::suits_epilogue_forward(problem).empty();
  if (on_meta(ctx, "linear_activation_forward", flops, {x, weight, bias, pre, y}, 0,
              fuses ? cuda::kFused : cuda::kSeparate)) {
    return;
  }
  if (auto* observer = ctx.product_observer()) observer->product(ctx, x, weight);
  dispatch<cuda::linear_activation_forward, cpu::linear_activation_forward>(ctx, x, weight, bias,
                                                                            activation, pre, y);
}

void linear_gated_forward(Context& ctx, CView x, CView weight, CView bias, Activation activation,
                          View pre, View y) {
  require(is_gated(activation), "linear_gated_forward: for gated activations");
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda && ctx.product_observer() == nullptr &&
        cuda::features_of_kernels().ring &&
        cuda::suits_plain_rows({x, weight, false, true}).empty()) {
      const auto [M, K] = weight.dims<2>("linear_gated_forward weight");
      const Dim rows = leading(x.shape());
      require_here(ctx, x, "linear_gated_forward x");
      require_dtype(ctx, weight, x.dtype(), "linear_gated_forward weight");
      require_rows(ctx, x, rows, K, x.dtype(), "linear_gated_forward x");
      if (bias) require_operand(ctx, bias, {M}, x.dtype(), "linear_gated_forward bias");
      require_rows(ctx, y, rows, M / 2, x.dtype(), "linear_gated_forward y");
      const OpScope scope(ctx, "linear_gated_forward");
      return cuda::plain_rows(ctx, x, weight, bias, {y, true, activation});
    }
  }
  linear_forward(ctx, x, weight, bias, pre);
  gated_forward(ctx, activation, pre, y);
}

void linear_backward_input(Context& ctx, CView dy, CView weight, Accumulate accumulate, View dx) {
  require_here(ctx, dy, "linear_backward_input dy");
  require_dtype(ctx, weight, dy.dtype(), "linear_backward_input weight");
  const auto [M, K] = weight.dims<2>("linear_backward_input weight");
  const Dim rows = leading(dy.shape());
  require_rows(ctx, dy, rows, M, dy.dtype(), "linear_backward_input dy");
  require_rows(ctx, dx, rows, K, dy.dtype(), "linear_backward_input dx");
  if (on_meta(ctx, "linear_backward_input", gemm_flops(rows, M, K), {dy, weight, dx})) return;
  dispatch<cuda::linear_backward_input, cpu::linear_backward_input>(ctx, dy, weight, accumulate,
                                                                    dx);
}

void linear_activation_backward_input(Context& ctx, CView dy, CView weight, CView pre,
                                      Activation activation, const ActivationGradients& gradients) {
  const auto& [dpre, dbias, accumulate_bias] = gradients;
  require(!is_gated(activation), "linear_activation_backward_input: not for gated activations");
  require_here(ctx, dy, "linear_activation_backward_input dy");
  require_dtype(ctx, weight, dy.dtype(), "linear_activation_backward_input weight");
  const auto [M, K] = weight.dims<2>("linear_activation_backward_input weight");
  const Dim rows = leading(dy.shape());
  require_rows(ctx, dy, rows, M, dy.dtype(), "linear_activation_backward_input dy");
  require_rows(ctx, pre, rows, K, dy.dtype(), "linear_activation_backward_input pre");
  require_rows(ctx, dpre, rows, K, dy.dtype(), "linear_activation_backward_input dpre");
  if (dbias) {
    require_gradient(ctx, dbias, {K}, dy.dtype(), "linear_activation_backward_input dbias");
  }
  const double flops =
      gemm_flops(rows, M, K) + (dbias ? 16.0 : 15.0) * static_cast<double>(rows * K);
  constexpr const char* kName = "linear_activation_backward_input";
  if (dbias) {
    plan_partials(
        ctx, kName,
        std::max(cuda::column_sums_partials(rows, K), cuda::activation_product_partials(rows, K)));
  }
  const cuda::ActivationProblem problem =
      cuda::activation_backward_problem(dy, weight, pre, activation, dpre);
  note_kernel(ctx, kName, cuda::kActivationBackward, problem, [&] { return text_of(problem); });
  const bool fuses =
      ctx.planned() == Device::cuda && cuda::suits_epilogue_backward(problem).empty();
  if (on_meta(
          ctx, kName, flops, {dy, weight, pre, dpre, dbias},
          workspace_for(ctx, cpu::linear_activation_backward_input_workspace(rows, K, dy.dtype()),
                        cuda::linear_activation_backward_input_workspace(rows, K, dy.dtype())),
          fuses ? cuda::kFused : cuda::kSeparate)) {
    return;
  }
  dispatch<cuda::linear_activation_backward_input, cpu::linear_activation_backward_input>(
      ctx, dy, weight, pre, activation, gradients);
}

void linear_backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate, View dweight,
                            View dbias) {
  require_here(ctx, dy, "linear_backward_weight dy");
  require(dweight || dbias, "linear_backward_weight: neither dweight nor dbias is asked for");
  const Dim rows = leading(dy.shape());
  const auto [M, K] = dweight ? dweight.dims<2>("linear_backward_weight dweight")
                              : std::array{last(dy, "linear_backward_weight dy"), Dim{0}};
  require_rows(ctx, dy, rows, M, dy.dtype(), "linear_backward_weight dy");
  if (dweight) {
    require_rows(ctx, x, rows, K, dy.dtype(), "linear_backward_weight x");
    require_gradient(ctx, dweight, {M, K}, dy.dtype(), "linear_backward_weight dweight");
  } else {
    x = {};
  }
  if (dbias) require_gradient(ctx, dbias, {M}, dy.dtype(), "linear_backward_weight dbias");
  const double bias_flops = dbias ? static_cast<double>(rows * M) : 0;
  if (dbias) plan_partials(ctx, "linear_backward_weight", cuda::column_sums_partials(rows, M));
  if (on_meta(ctx, "linear_backward_weight", gemm_flops(rows, M, K) + bias_flops,
              {dy, x, dweight, dbias})) {
    return;
  }
  dispatch<cuda::linear_backward_weight, cpu::linear_backward_weight>(ctx, dy, x, accumulate,
                                                                      dweight, dbias);
}

}  // namespace hyperslab::ops
