// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/quantized.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "cuda/products/matrix_vector.hpp"
#include "hyperslab/core/error.hpp"
#include "quantized_checks.hpp"

namespace hyperslab::ops {
namespace {

Dim ceil_divide(Dim value, Dim unit) { return (value + unit - 1) / unit; }

void require_named(bool condition, std::string_view what, const char* rule) {
  if (!condition) throw Error(ExitCode::internal, std::string(what) + ": " + rule);
}

double elements(const Shape& shape) { return static_cast<double>(shape.numel()); }

template <class AnyView>
BasicQuantizedMatrix<AnyView> slice_rows(const BasicQuantizedMatrix<AnyView>& matrix, Dim first,
                                         Dim count) {
  BasicQuantizedMatrix<AnyView> rows = matrix;
  rows.shape = {count, matrix.shape[1]};
  rows.codes = matrix.codes.slice(first, count);
  const Dim in_row = matrix.format == WeightFormat::int8 ? 1 : matrix.shape[1] / matrix.group;
  rows.scales = matrix.scales.flat().slice(first * in_row, count * in_row);
  if (!matrix.block_scales) return rows;
  const Dim before = matrix.first_scale + first * in_row;
  rows.first_scale = before % kScaleBlock;
  rows.block_scales = matrix.block_scales.slice(
      before / kScaleBlock, ceil_divide(rows.first_scale + count * in_row, kScaleBlock));
  return rows;
}

}  // namespace

void require_format(WeightFormat format, Dim group, const Shape& shape, std::string_view what) {
  if (shape.rank() != 2) throw_shape_error(what, shape, "2 dimensions", {});
  const Dim K = shape[1];
  switch (format) {
    case WeightFormat::int8: require_named(group == K, what, "int8 has one scale a row"); return;
    case WeightFormat::nf4:
      require_named(group == kNormalFloatGroup, what, "nf4 has groups of 64");
      [[fallthrough]];
    case WeightFormat::int4:
      require_named(group > 0 && group % 2 == 0 && K % group == 0, what,
                    "the group must be even and divide the row");
  }
}

void require_quantized(const Context& ctx, const CQuantizedMatrix& matrix,
                       const std::string& what) {
  require_format(matrix.format, matrix.group, matrix.shape, what);
  const Dim M = matrix.shape[0];
  const Dim K = matrix.shape[1];
  const bool is_int8 = matrix.format == WeightFormat::int8;
  require_operand(ctx, matrix.codes, {M, is_int8 ? K : K / 2}, DType::u8, what + " codes");
  if (is_int8) return require_count(ctx, matrix.scales, M, DType::f32, what + " scales");
  const bool is_nf4 = matrix.format == WeightFormat::nf4;
  require_count(ctx, matrix.scales, M * K / matrix.group, is_nf4 ? DType::u8 : DType::f16,
                what + " scales");
  if (!is_nf4) return;
  const Dim first = matrix.first_scale;
  require_named(first == 0 || ctx.device() != Device::cuda, what, "begins inside of a block");
  require_count(ctx, matrix.block_scales, ceil_divide(first + M * K / matrix.group, kScaleBlock),
                DType::f32, what + " block scales");
}

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::int8: return "int8";
    case WeightFormat::int4: return "int4";
    case WeightFormat::nf4: return "nf4";
  }
  return "";
}

CQuantizedMatrix as_const(const QuantizedMatrix& matrix) {
  return {matrix.format, matrix.group,        matrix.shape,      matrix.codes,
          matrix.scales, matrix.block_scales, matrix.first_scale};
}

QuantizedMatrix rows_of(const QuantizedMatrix& matrix, Dim first, Dim count) {
  return slice_rows(matrix, first, count);
}
CQuantizedMatrix rows_of(const CQuantizedMatrix& matrix, Dim first, Dim count) {
  return slice_rows(matrix, first, count);
}

QuantizedBytes quantized_bytes(WeightFormat format, Dim group, const Shape& shape) {
  const auto bytes = [](Dim count) { return static_cast<std::size_t>(count); };
  const Dim count = shape.numel();
  switch (format) {
    case WeightFormat::int8: return {bytes(count), bytes(shape[0] * 4), 0};
    case WeightFormat::int4: return {bytes(count / 2), bytes(count / group * 2), 0};
    case WeightFormat::nf4:
      return {bytes(count / 2), bytes(count / group),
              bytes(ceil_divide(count / group, kScaleBlock) * 4)};
  }
  return {};
}

void quantize(Context& ctx, CView weight, const QuantizedMatrix& out) {
  require_here(ctx, weight, "quantize weight");
  require_shape(weight, out.shape, "quantize weight");
  require_quantized(ctx, as_const(out), "quantize out");
  require(out.first_scale == 0, "quantize: it begins inside of a block of scales");
  if (on_meta(ctx, "quantize", 4 * elements(out.shape), {weight, out.codes, out.scales})) return;
  dispatch<cuda::quantize, cpu::quantize>(ctx, weight, out);
}

void dequantize(Context& ctx, const CQuantizedMatrix& weight, View out) {
  require_quantized(ctx, weight, "dequantize weight");
  require_here(ctx, out, "dequantize out");
  require_shape(out, weight.shape, "dequantize out");
  if (on_meta(ctx, "dequantize", elements(weight.shape),
              {weight.codes, weight.scales, weight.block_scales, out})) {
    return;
  }
  dispatch<cuda::dequantize, cpu::dequantize>(ctx, weight, out);
}

void fake_quantize(Context& ctx, WeightFormat format, Dim group, CView weight, View out) {
  require_here(ctx, weight, "fake_quantize weight");
  require_format(format, group, weight.shape(), "fake_quantize weight");
  require_operand(ctx, out, weight.shape(), weight.dtype(), "fake_quantize out");
  if (on_meta(ctx, "fake_quantize", 5 * elements(weight.shape()), {weight, out})) return;
  dispatch<cuda::fake_quantize, cpu::fake_quantize>(ctx, format, group, weight, out);
}

void int8_row_scales(Context& ctx, CView weight, View scales) {
  require_here(ctx, weight, "int8_row_scales weight");
  const auto [M, K] = weight.dims<2>("int8_row_scales weight");
  require_count(ctx, scales, M, DType::f32, "int8_row_scales scales");
  if (on_meta(ctx, "int8_row_scales", elements(weight.shape()), {weight, scales})) return;
  dispatch<cuda::int8_row_scales, cpu::int8_row_scales>(ctx, weight, scales);
}

void quantize_scaled(Context& ctx, CView weight, const QuantizedMatrix& out) {
  require(out.format == WeightFormat::int8, "quantize_scaled: only int8 has a scale a row");
  require_here(ctx, weight, "quantize_scaled weight");
  require_shape(weight, out.shape, "quantize_scaled weight");
  require_quantized(ctx, as_const(out), "quantize_scaled out");
  if (on_meta(ctx, "quantize_scaled", 3 * elements(out.shape), {weight, out.codes, out.scales})) {
    return;
  }
  dispatch<cuda::quantize_scaled, cpu::quantize_scaled>(ctx, weight, out);
}

void fake_quantize_scaled(Context& ctx, CView weight, CView scales, View out) {
  require_here(ctx, weight, "fake_quantize_scaled weight");
  const auto [M, K] = weight.dims<2>("fake_quantize_scaled weight");
  require_count(ctx, scales, M, DType::f32, "fake_quantize_scaled scales");
  require_operand(ctx, out, weight.shape(), weight.dtype(), "fake_quantize_scaled out");
  if (on_meta(ctx, "fake_quantize_scaled", 4 * elements(weight.shape()), {weight, scales, out})) {
    return;
  }
  dispatch<cuda::fake_quantize_scaled, cpu::fake_quantize_scaled>(ctx, weight, scales, out);
}

namespace {

/// The rows of x after checking the operands of a product with y (rows, width).
Dim require_product(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                    ActivationFormat activations, CView y, Dim width) {
  require_quantized(ctx, weight, "quantized_linear_forward weight");
  require(activations == ActivationFormat::none || weight.format == WeightFormat::int8,
          "quantized_linear_forward: int8 activations need int8 weights");
  const Dim M = weight.shape[0];
  const Dim K = weight.shape[1];
  require(activations == ActivationFormat::none || K <= kMostExactK,
          "quantized_linear_forward: rows are too long for exact sums in 32 bits");
  const Dim rows = leading(x.shape());
  require_here(ctx, x, "quantized_linear_forward x");
  require_rows(ctx, x, rows, K, x.dtype(), "quantized_linear_forward x");
  if (bias) require_operand(ctx, bias, {M}, x.dtype(), "quantized_linear_forward bias");
  require_rows(ctx, y, rows, width, x.dtype(), "quantized_linear_forward y");
  return rows;
}

}  // namespace

void quantized_linear_forward(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                              ActivationFormat activations, View y) {
  const Dim M = weight.shape[0];
  const Dim K = weight.shape[1];
  const Dim rows = require_product(ctx, x, weight, bias, activations, y, M);
  const double flops = 2.0 * static_cast<double>(rows) * elements(weight.shape);
  const QuantizedProduct product = {rows, M, K, weight.format, activations, x.dtype()};
  if (on_meta(ctx, "quantized_linear_forward", flops,
              {x, weight.codes, weight.scales, weight.block_scales, bias, y},
              workspace_for(ctx, cpu::quantized_linear_forward_workspace(ctx.threads(), product),
                            cuda::quantized_linear_forward_workspace(product)))) {
    return;
  }
  dispatch<cuda::quantized_linear_forward, cpu::quantized_linear_forward>(ctx, x, weight, bias,
                                                                          activations, y);
}

void quantized_linear_gated_forward(Context& ctx, CView x, const CQuantizedMatrix& weight,
                                    CView bias, ActivationFormat activations, Activation activation,
                                    View pre, View y) {
  require(is_gated(activation), "quantized_linear_gated_forward: for gated activations");
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda && activations == ActivationFormat::none &&
        cuda::suits_quantized_row(x, weight, true)) {
      (void)require_product(ctx, x, weight, bias, activations, y, weight.shape[0] / 2);
      const OpScope scope(ctx, "quantized_linear_gated_forward");
      return cuda::quantized_row(ctx, x, weight, bias, {y, true, activation});
    }
  }
  quantized_linear_forward(ctx, x, weight, bias, activations, pre);
  gated_forward(ctx, activation, pre, y);
}

}  // namespace hyperslab::ops
