// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/fp8.hpp"

#include <cstdint>
#include <string>

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::ops {
namespace {

template <class AnyView>
void require_matrix(const Context& ctx, const BasicFp8Matrix<AnyView>& matrix, Dim rows,
                    Dim columns, const std::string& what) {
  require_operand(ctx, matrix.values, {rows, columns}, DType::u8, what + " values");
  if (columns % kFp8Multiple != 0) {
    throw_shape_error(what, matrix.values.shape(), "sums of a multiple of 16 products", {});
  }
  const bool groups = has_groups(matrix.scaling);
  if (groups && rows % kFp8Multiple != 0) {
    throw_shape_error(what, matrix.values.shape(), "a multiple of 16 rows, of groups of 128", {});
  }
  const Shape scales = fp8_scales_shape(matrix.scaling, matrix.values.shape());
  if (!groups) require_operand(ctx, matrix.amax, scales, DType::f32, what + " amax");
  require_operand(ctx, matrix.scales, scales, DType::f32, what + " scales");
}

/// On the CPU, too, so that operands valid there are valid on a GPU.
void require_aligned(CView scales, const char* message) {
  constexpr std::uintptr_t kBytes = 16;  // cuBLASLt
  require(reinterpret_cast<std::uintptr_t>(scales.raw()) % kBytes == 0, message);
}

void require_pair(Fp8Scaling a, Fp8Scaling b) {
  if (a == Fp8Scaling::block && b == Fp8Scaling::block) {
    throw Error(
        ExitCode::internal,
        "fp8_matmul: both operands have scales of blocks, which cuBLASLt does not multiply; "
        "one of them takes scales of groups");
  }
  require(a == b || (has_groups(a) && has_groups(b)),
          "fp8_matmul: both operands are scaled alike, or one by groups and the other by blocks");
}

Dim groups_of(Dim count) { return round_up(count, kFp8Group) / kFp8Group; }

}  // namespace

Shape fp8_scales_shape(Fp8Scaling scaling, const Shape& values) {
  constexpr Dim kScalesMultiple = 4;
  switch (scaling) {
    case Fp8Scaling::tensor: return {1};
    case Fp8Scaling::row: return {values[0]};
    case Fp8Scaling::group: return {groups_of(values[1]), values[0]};
    case Fp8Scaling::block:
      return {groups_of(values[0]), round_up(groups_of(values[1]), kScalesMultiple)};
  }
  return {};
}

Dim fp8_rows(Fp8Scaling scaling, Dim rows) {
  return has_groups(scaling) ? round_up(rows, kFp8Multiple) : rows;
}

CFp8Matrix as_const(const Fp8Matrix& matrix) {
  return {matrix.format, matrix.scaling, matrix.values, matrix.amax, matrix.scales};
}

void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Amax amax) {
  require_here(ctx, x, "fp8_quantize x");
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  require(straight.values || transposed.values, "fp8_quantize: no FP8 values are asked for");
  if (straight.values && transposed.values) {
    require(straight.scaling == transposed.scaling && straight.format == transposed.format,
            "fp8_quantize: a matrix and its transpose have one format and one scaling");
  }
  if (straight.values) {
    require_matrix(ctx, straight, fp8_rows(straight.scaling, rows), columns,
                   "fp8_quantize straight");
  }
  if (transposed.values) {
    require_matrix(ctx, transposed, columns, round_up(rows, kFp8Multiple),
                   "fp8_quantize transposed");
  }
  const bool given = amax == Fp8Amax::given;
  const Fp8Scaling scaling = (straight.values ? straight : transposed).scaling;
  require(!given || scaling == Fp8Scaling::tensor,
          "fp8_quantize: an amax may be given only with one scale for the tensor");
  const double flops = (given ? 2.0 : 3.0) * static_cast<double>(x.numel());
  // Without groups and blocks each amax is found in a pass of their own, which reads x once more.
  const CView once_more = given || has_groups(scaling) ? CView() : x;
  if (on_meta(ctx, "fp8_quantize", flops, {x, once_more, straight.values, transposed.values})) {
    return;
  }
  dispatch<cuda::fp8_quantize, cpu::fp8_quantize>(ctx, x, straight, transposed, amax);
}

void fp8_amax(Context& ctx, CView x, View amax) {
  require_here(ctx, x, "fp8_amax x");
  require_operand(ctx, amax, {1}, DType::f32, "fp8_amax amax");
  if (x.numel() % kFp8Multiple != 0) {
    throw_shape_error("fp8_amax x", x.shape(), "a multiple of 16 elements", {});
  }
  if (on_meta(ctx, "fp8_amax", static_cast<double>(x.numel()), {x, amax})) return;
  dispatch<cuda::fp8_amax, cpu::fp8_amax>(ctx, x, amax);
}

void fp8_scales(Context& ctx, Fp8Format format, CView amax, View scales) {
  require_here(ctx, amax, "fp8_scales amax");
  const Shape count = {amax.numel()};
  require_operand(ctx, amax, count, DType::f32, "fp8_scales amax");
  require_operand(ctx, scales, count, DType::f32, "fp8_scales scales");
  if (on_meta(ctx, "fp8_scales", static_cast<double>(amax.numel()), {amax, scales})) return;
  dispatch<cuda::fp8_scales, cpu::fp8_scales>(ctx, format, amax, scales);
}

void fp8_transpose(Context& ctx, CView values, View transposed) {
  require_here(ctx, values, "fp8_transpose values");
  const auto [rows, columns] = values.dims<2>("fp8_transpose values");
  require_operand(ctx, values, {rows, columns}, DType::u8, "fp8_transpose values");
  if (columns % kFp8Multiple != 0) {
    throw_shape_error("fp8_transpose values", values.shape(), "rows of a multiple of 16 values",
                      {});
  }
  require_operand(ctx, transposed, {columns, round_up(rows, kFp8Multiple)}, DType::u8,
                  "fp8_transpose transposed");
  if (on_meta(ctx, "fp8_transpose", 0, {values, transposed})) return;
  dispatch<cuda::fp8_transpose, cpu::fp8_transpose>(ctx, values, transposed);
}

void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias, Fp8Sums sums,
                Accumulate accumulate, View c) {
  require_here(ctx, c, "fp8_matmul c");
  const auto [M, N] = c.dims<2>("fp8_matmul c");
  require_here(ctx, a.values, "fp8_matmul a");
  const Dim K = last(a.values, "fp8_matmul a");
  require_matrix(ctx, a, M, K, "fp8_matmul a");
  require_matrix(ctx, b, N, K, "fp8_matmul b");
  require_aligned(a.scales, "fp8_matmul: scales of a begin at no multiple of 16 bytes");
  require_aligned(b.scales, "fp8_matmul: scales of b begin at no multiple of 16 bytes");
  require_pair(a.scaling, b.scaling);
  require(!has_groups(a.scaling) || sums == Fp8Sums::exact,
          "fp8_matmul: with groups all sums are exact");
  require(a.format == Fp8Format::e4m3 || b.format == Fp8Format::e4m3,
          "fp8_matmul: one of the operands must be e4m3");
  require(c.dtype() == DType::f32 || c.dtype() == DType::bf16, "fp8_matmul: c must be f32 or bf16");
  if (bias) require_operand(ctx, bias, {N}, c.dtype(), "fp8_matmul bias");
  const double flops =
      2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  if (on_meta(ctx, "fp8_matmul", flops, {a.values, b.values, bias, c})) return;
  dispatch<cuda::fp8_matmul, cpu::fp8_matmul>(ctx, a, b, bias, sums, accumulate, c);
}

}  // namespace hyperslab::ops
