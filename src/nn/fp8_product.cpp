// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/fp8_product.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::nn {
namespace {

using ops::Fp8Format;
using ops::Fp8Matrix;
using ops::Fp8Scaling;

/// Of gradients of outputs. With a scale a tensor they need the wider range: a few rows of large
/// gradients would make the others zero.
Fp8Format gradient_format(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::tensor ? Fp8Format::e5m2 : Fp8Format::e4m3;
}

constexpr std::size_t kAlignment = 256;

std::size_t bytes_of(DType dtype, Dim count) {
  return round_up(static_cast<std::size_t>(count) * size_of(dtype), kAlignment);
}

Dim scales_of(Fp8Scaling scaling, const Shape& shape) {
  return scaling == Fp8Scaling::tensor ? 1 : shape[0];
}

/// Of a matrix of this shape, with the numbers of its scales.
std::size_t bytes_of(Fp8Scaling scaling, const Shape& shape) {
  return bytes_of(DType::u8, shape.numel()) + 2 * bytes_of(DType::f32, scales_of(scaling, shape));
}

/// Matrices in memory of bytes, one behind the other.
class Operands {
 public:
  Operands(Device device, Fp8Scaling scaling, void* memory)
      : device_(device), scaling_(scaling), next_(static_cast<std::byte*>(memory)) {}

  Fp8Matrix take(Fp8Format format, const Shape& shape) {
    const Shape scales = {scales_of(scaling_, shape)};
    return {format, scaling_, take(DType::u8, shape), take(DType::f32, scales),
            take(DType::f32, scales)};
  }

 private:
  View take(DType dtype, const Shape& shape) {
    const View view(next_, dtype, device_, shape);
    next_ += bytes_of(dtype, shape.numel());
    return view;
  }

  Device device_;
  Fp8Scaling scaling_;
  std::byte* next_;
};

/// Matrices of these shapes in the context's workspace.
Operands in_workspace(Context& ctx, Fp8Scaling scaling, std::initializer_list<Shape> shapes) {
  std::size_t bytes = 0;
  for (const Shape& shape : shapes) bytes += bytes_of(scaling, shape);
  return {ctx.device(), scaling, ctx.workspace("8-bit operands", bytes)};
}

/// Which of Kept::largest.
enum class Magnitude : std::uint8_t { input = 0, weight = 1 };

/// The matrix with its largest magnitude in `kept`, unless that is absent.
Fp8Matrix with_largest(Fp8Matrix matrix, View kept, Magnitude which) {
  if (kept) matrix.largest = kept.slice(static_cast<Dim>(which), 1);
  return matrix;
}

ops::Fp8Largest if_kept(View largest) {
  return largest ? ops::Fp8Largest::given : ops::Fp8Largest::found;
}

Dim padded_rows(CView rows) { return round_up(rows.shape()[0], ops::kFp8Multiple); }

}  // namespace

Fp8Product::Fp8Product(const Fp8Config& config, Dim outputs, Dim inputs, Dim rank_outputs,
                       Dim rank_inputs) {
  if (!config || std::min(outputs, inputs) < config.min_width) return;
  for (const Dim width : {rank_outputs, rank_inputs}) {
    if (width % ops::kFp8Multiple == 0) continue;
    throw Error(ExitCode::usage,
                "precision.gemm: products in 8-bit floats take widths of a multiple of " +
                    std::to_string(ops::kFp8Multiple) +
                    " on every tensor rank, and a layer of the blocks has " +
                    std::to_string(width) +
                    ": change the width or parallel.tensor, or set precision.gemm to compute");
  }
  is_used_ = true;
  scaling_ = config.scaling.value_or(Fp8Scaling::tensor);
}

Dim Fp8Product::kept_bytes(const Fp8Config& config, Dim outputs, Dim rows) {
  return static_cast<Dim>(bytes_of(config.scaling.value_or(Fp8Scaling::tensor),
                                   {outputs, round_up(rows, ops::kFp8Multiple)}));
}

void Fp8Product::forward(Context& ctx, CView x, CView weight, CView bias, const Kept& kept,
                         View y) const {
  const CView rows = x.as_matrix();
  Operands operands = in_workspace(ctx, scaling_, {rows.shape(), weight.shape()});
  const Fp8Matrix a =
      with_largest(operands.take(Fp8Format::e4m3, rows.shape()), kept.largest, Magnitude::input);
  const Fp8Matrix b =
      with_largest(operands.take(Fp8Format::e4m3, weight.shape()), kept.largest, Magnitude::weight);
  ops::fp8_quantize(ctx, rows, a, {});
  ops::fp8_quantize(ctx, weight, b, {});
  ops::fp8_matmul(ctx, as_const(a), as_const(b), bias, ops::Fp8Sums::fast, ops::Accumulate::no,
                  y.as_matrix());
}

Fp8Matrix Fp8Product::kept_gradient(CView rows, View kept) const {
  if (!kept) return {};
  return Operands(kept.device(), scaling_, kept.raw())
      .take(gradient_format(scaling_), {rows.shape()[1], padded_rows(rows)});
}

void Fp8Product::backward_input(Context& ctx, CView dy, CView weight, const Kept& kept,
                                View dx) const {
  const CView rows = dy.as_matrix();
  const auto [M, K] = weight.dims<2>("8-bit product weight");
  Operands operands = in_workspace(ctx, scaling_, {rows.shape(), {K, M}});
  const Fp8Matrix a = operands.take(gradient_format(scaling_), rows.shape());
  const Fp8Matrix b =
      with_largest(operands.take(Fp8Format::e4m3, {K, M}), kept.largest, Magnitude::weight);
  ops::fp8_quantize(ctx, rows, a, kept_gradient(rows, kept.gradient));
  ops::fp8_quantize(ctx, weight, {}, b, if_kept(kept.largest));
  ops::fp8_matmul(ctx, as_const(a), as_const(b), {}, ops::Fp8Sums::exact, ops::Accumulate::no,
                  dx.as_matrix());
}

void Fp8Product::backward_weight(Context& ctx, CView dy, CView x, const Kept& kept,
                                 ops::Accumulate accumulate, View dweight) const {
  const CView rows = dy.as_matrix();
  const auto [M, K] = dweight.dims<2>("8-bit product dweight");
  const Shape left = {M, padded_rows(rows)};
  const Shape right = {K, padded_rows(rows)};
  Fp8Matrix a = kept_gradient(rows, kept.gradient);
  Operands operands =
      a.codes ? in_workspace(ctx, scaling_, {right}) : in_workspace(ctx, scaling_, {right, left});
  const Fp8Matrix b =
      with_largest(operands.take(Fp8Format::e4m3, right), kept.largest, Magnitude::input);
  if (!a.codes) {
    a = operands.take(gradient_format(scaling_), left);
    ops::fp8_quantize(ctx, rows, {}, a);
  }
  ops::fp8_quantize(ctx, x.as_matrix(), {}, b, if_kept(kept.largest));
  ops::fp8_matmul(ctx, as_const(a), as_const(b), {}, ops::Fp8Sums::exact, accumulate, dweight);
}

}  // namespace hyperslab::nn
