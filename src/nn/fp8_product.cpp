// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/fp8_product.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::nn {
namespace {

using ops::Fp8Format;
using ops::Fp8Matrix;
using ops::Fp8Scaling;
using ops::Fp8Sums;

/// The rounding of each operand of a recipe, and the sums of its products.
struct Rounding {
  Fp8Scaling rows;      ///< scaling of inputs and of gradients of outputs
  Fp8Scaling weights;   ///< scaling of weights
  Fp8Format gradients;  ///< format of gradients of outputs; all else is e4m3
  Fp8Sums forward;      ///< sums of the forward product; sums of gradients are exact
};

Rounding rounding_of(Fp8Recipe recipe) {
  switch (recipe) {
    // Gradients need the wider range here: a few rows of large ones would make the others zero.
    case Fp8Recipe::tensor:
      return {Fp8Scaling::tensor, Fp8Scaling::tensor, Fp8Format::e5m2, Fp8Sums::fast};
    case Fp8Recipe::row: return {Fp8Scaling::row, Fp8Scaling::row, Fp8Format::e4m3, Fp8Sums::fast};
    case Fp8Recipe::block:
      return {Fp8Scaling::group, Fp8Scaling::block, Fp8Format::e4m3, Fp8Sums::exact};
  }
  return {};
}

std::size_t bytes_of(DType dtype, Dim count) {
  return round_up(static_cast<std::size_t>(count) * size_of(dtype), Arena::kAlignment);
}

/// A matrix in 8-bit floats that memory is asked for.
struct MatrixSpec {
  Fp8Format format;
  Fp8Scaling scaling;
  Shape shape;

  /// The bytes of FP8 values, scales and, without groups, of each amax.
  [[nodiscard]] std::size_t bytes() const {
    const std::size_t scales = bytes_of(DType::f32, ops::fp8_scales_shape(scaling, shape).numel());
    return bytes_of(DType::u8, shape.numel()) + (ops::has_groups(scaling) ? 1 : 2) * scales;
  }
};

/// Rows of x, the factors of sums along them: with groups as many as are a multiple of
/// kFp8Multiple; multiply_rows takes the rest.
MatrixSpec along_rows(Fp8Format format, Fp8Scaling scaling, CView x) {
  const auto [rows, columns] = x.dims<2>("8-bit product rows");
  const Dim rest = ops::has_groups(scaling) ? rows % ops::kFp8Multiple : 0;
  return {format, scaling, {rows - rest, columns}};
}

/// The rows that are left of x, filled up with zeros.
MatrixSpec rest_of(const MatrixSpec& whole) {
  return {whole.format, whole.scaling, {ops::kFp8Multiple, whole.shape[1]}};
}

/// The transpose of x, the factors of sums along its columns.
MatrixSpec along_columns(Fp8Format format, Fp8Scaling scaling, Dim rows, Dim columns) {
  return {format, scaling, {columns, round_up(rows, ops::kFp8Multiple)}};
}

/// Matrices in memory of bytes, one after another.
class Operands {
 public:
  Operands(Device device, void* memory) : device_(device), next_(static_cast<std::byte*>(memory)) {}

  Fp8Matrix take(const MatrixSpec& spec) {
    const Shape scales = ops::fp8_scales_shape(spec.scaling, spec.shape);
    const View values = take(DType::u8, spec.shape);
    const View amax = ops::has_groups(spec.scaling) ? View() : take(DType::f32, scales);
    return {spec.format, spec.scaling, values, amax, take(DType::f32, scales)};
  }
  View take(DType dtype, const Shape& shape) {
    const View view(next_, dtype, device_, shape);
    next_ += bytes_of(dtype, shape.numel());
    return view;
  }

 private:
  Device device_;
  std::byte* next_;
};

/// Matrices in the context's workspace, and `more` bytes.
Operands in_workspace(Context& ctx, std::initializer_list<MatrixSpec> matrices,
                      std::size_t more = 0) {
  std::size_t bytes = more;
  for (const MatrixSpec& matrix : matrices) bytes += matrix.bytes();
  return {ctx.device(), ctx.workspace("8-bit operands", bytes)};
}

/// The index of an element of Kept::amax.
enum class Amax : std::uint8_t { input = 0, weight = 1, output_gradient = 2 };

View amax_of(View kept, Amax which) {
  return kept ? kept.slice(static_cast<Dim>(which), 1) : View();
}

/// The matrix with its amax in `kept`, unless that is absent.
Fp8Matrix with_amax(Fp8Matrix matrix, View kept, Amax which) {
  if (kept) matrix.amax = amax_of(kept, which);
  return matrix;
}

ops::Fp8Amax if_kept(View amax, ops::Fp8Amax where_kept = ops::Fp8Amax::given) {
  return amax ? where_kept : ops::Fp8Amax::found;
}

/// Bytes for rows that are left. Asked for even if none are, so that fewer rows never take more.
std::size_t rest_bytes(const MatrixSpec& whole, CView y) {
  if (!ops::has_groups(whole.scaling)) return 0;
  return rest_of(whole).bytes() + bytes_of(y.dtype(), ops::kFp8Multiple * y.shape()[1]);
}

/// y = x b^T + bias.
struct RowProduct {
  CView x;
  const Fp8Matrix& b;
  CView bias;
  Fp8Sums sums;
  View y;
  View amax{};  ///< (1) for the amax of x, or absent
  ops::Fp8Amax is_there = ops::Fp8Amax::found;
};

/// Rounds x, and its transpose unless that is absent, and multiplies.
void multiply_rows(Context& ctx, Operands& memory, const MatrixSpec& whole,
                   const Fp8Matrix& transposed, const RowProduct& product) {
  const auto& [x, b, bias, sums, y, amax, is_there] = product;
  const Dim count = whole.shape[0];
  const Dim rest = x.shape()[0] - count;
  Fp8Matrix a = memory.take(whole);
  if (amax) a.amax = amax;
  if (rest == 0) {
    ops::fp8_quantize(ctx, x, a, transposed, is_there);
    return ops::fp8_matmul(ctx, as_const(a), as_const(b), bias, sums, ops::Accumulate::no, y);
  }
  if (transposed.values) ops::fp8_quantize(ctx, x, {}, transposed);
  ops::fp8_quantize(ctx, x.slice(0, count), a, {});
  ops::fp8_matmul(ctx, as_const(a), as_const(b), bias, sums, ops::Accumulate::no,
                  y.slice(0, count));
  const Fp8Matrix last = memory.take(rest_of(whole));
  const View filled = memory.take(y.dtype(), {ops::kFp8Multiple, y.shape()[1]});
  ops::fp8_quantize(ctx, x.slice(count, rest), last, {});
  ops::fp8_matmul(ctx, as_const(last), as_const(b), bias, sums, ops::Accumulate::no, filled);
  copy(ctx, filled.slice(0, rest), y.slice(count, rest));
}

}  // namespace

Fp8Product::Fp8Product(const Fp8Config& config, Dim outputs, Dim inputs, Dim rank_outputs,
                       Dim rank_inputs) {
  if (!config.recipe || std::min(outputs, inputs) < config.min_width) return;
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
  recipe_ = *config.recipe;
}

View Fp8Product::amax_of_input(View amax) { return amax_of(amax, Amax::input); }
View Fp8Product::amax_of_gradient(View amax) { return amax_of(amax, Amax::output_gradient); }

Dim Fp8Product::kept_bytes(const Fp8Config& config, Dim outputs, Dim rows) {
  if (!config.recipe) return 0;
  const Rounding to = rounding_of(*config.recipe);
  return static_cast<Dim>(along_columns(to.gradients, to.rows, rows, outputs).bytes());
}

void Fp8Product::forward(Context& ctx, CView x, CView weight, CView bias, const Kept& kept,
                         View y) const {
  const Rounding to = rounding_of(recipe_);
  const CView rows = x.as_matrix();
  const MatrixSpec left = along_rows(Fp8Format::e4m3, to.rows, rows);
  const MatrixSpec right = along_rows(Fp8Format::e4m3, to.weights, weight);
  Operands operands = in_workspace(ctx, {left, right}, rest_bytes(left, y.as_matrix()));
  const RoundedWeights rounded = kept_weights(weight, kept.weights);
  Fp8Matrix b = rounded.straight;
  if (!b.values) {
    b = with_amax(operands.take(right), kept.amax, Amax::weight);
    ops::fp8_quantize(ctx, weight, b, {});
  } else if (kept.weights == Fp8Weights::renewed && rounded.transposed.values) {
    renew(ctx, weight, rounded);
  }
  multiply_rows(ctx, operands, left, {},
                {rows, b, bias, to.forward, y.as_matrix(), amax_of(kept.amax, Amax::input),
                 if_kept(kept.amax, kept.input)});
}

std::size_t Fp8Product::kept_weight_bytes(const Fp8Config& config, Dim M, Dim K) {
  if (!config.recipe) return 0;
  const Rounding to = rounding_of(*config.recipe);
  const MatrixSpec straight = {Fp8Format::e4m3, to.weights, {M, K}};
  const MatrixSpec transposed = along_columns(Fp8Format::e4m3, to.weights, M, K);
  return config.gathers_fp8 ? bytes_of(DType::u8, transposed.shape.numel())
                            : straight.bytes() + transposed.bytes();
}

Fp8Product::RoundedWeights Fp8Product::kept_weights(CView weight, Fp8Weights weights) const {
  if (kept_ == nullptr) return {};
  const auto [M, K] = weight.dims<2>("8-bit product weight");
  const Rounding to = rounding_of(recipe_);
  const Fp8Matrix straight = {Fp8Format::e4m3, to.weights, kept_->values, kept_->amax,
                              kept_->scale};
  if (kept_->replaces_values()) return {.straight = straight, .transposed = {}};
  if (weights == Fp8Weights::rounded || !kept_->memory) return {};
  Operands operands(kept_->memory.device(), kept_->memory.raw());
  if (kept_->gathered) {
    Fp8Matrix transposed = straight;
    transposed.values =
        operands.take(DType::u8, along_columns(Fp8Format::e4m3, to.weights, M, K).shape);
    return {straight, transposed};
  }
  return {.straight = operands.take({Fp8Format::e4m3, to.weights, {M, K}}),
          .transposed = operands.take(along_columns(Fp8Format::e4m3, to.weights, M, K))};
}

/// Gathered FP8 values of the weights are here, and lack the transpose.
void Fp8Product::renew(Context& ctx, CView weight, const RoundedWeights& rounded) const {
  if (kept_->gathered) {
    ops::fp8_transpose(ctx, rounded.straight.values, rounded.transposed.values);
  } else {
    ops::fp8_quantize(ctx, weight, rounded.straight, rounded.transposed);
  }
}

Fp8Matrix Fp8Product::kept_gradient(CView rows, View kept) const {
  if (!kept) return {};
  const auto [count, outputs] = rows.dims<2>("8-bit product gradient");
  const Rounding to = rounding_of(recipe_);
  return Operands(kept.device(), kept.raw())
      .take(along_columns(to.gradients, to.rows, count, outputs));
}

void Fp8Product::backward_input(Context& ctx, CView dy, CView weight, const Kept& kept,
                                View dx) const {
  const Rounding to = rounding_of(recipe_);
  const CView rows = dy.as_matrix();
  const auto [M, K] = weight.dims<2>("8-bit product weight");
  const MatrixSpec left = along_rows(to.gradients, to.rows, rows);
  const MatrixSpec right = along_columns(Fp8Format::e4m3, to.weights, M, K);
  Operands operands = in_workspace(ctx, {left, right}, rest_bytes(left, dx.as_matrix()));
  const RoundedWeights rounded = kept_weights(weight, kept.weights);
  Fp8Matrix b = rounded.transposed;
  if (!b.values && rounded.straight.values) {
    b = rounded.straight;
    b.values = operands.take(right).values;
    ops::fp8_transpose(ctx, rounded.straight.values, b.values);
  } else if (!b.values) {
    b = with_amax(operands.take(right), kept.amax, Amax::weight);
    ops::fp8_quantize(ctx, weight, {}, b, if_kept(kept.amax));
  }
  multiply_rows(ctx, operands, left, kept_gradient(rows, kept.gradient),
                {rows,
                 b,
                 {},
                 Fp8Sums::exact,
                 dx.as_matrix(),
                 amax_of(kept.amax, Amax::output_gradient),
                 if_kept(kept.amax, kept.output_gradient)});
}

void Fp8Product::backward_weight(Context& ctx, CView dy, CView x, const Kept& kept,
                                 ops::Accumulate accumulate, View dweight) const {
  const Rounding to = rounding_of(recipe_);
  const CView rows = dy.as_matrix();
  const auto [M, K] = dweight.dims<2>("8-bit product dweight");
  const MatrixSpec left = along_columns(to.gradients, to.rows, rows.shape()[0], M);
  const MatrixSpec right = along_columns(Fp8Format::e4m3, to.rows, rows.shape()[0], K);
  Fp8Matrix a = kept_gradient(rows, kept.gradient);
  Operands operands = a.values ? in_workspace(ctx, {right}) : in_workspace(ctx, {right, left});
  const Fp8Matrix b = with_amax(operands.take(right), kept.amax, Amax::input);
  if (!a.values) {
    a = with_amax(operands.take(left), kept.amax, Amax::output_gradient);
    ops::fp8_quantize(ctx, rows, {}, a, if_kept(kept.amax, kept.output_gradient));
  }
  ops::fp8_quantize(ctx, x.as_matrix(), {}, b, if_kept(kept.amax));
  ops::fp8_matmul(ctx, as_const(a), as_const(b), {}, Fp8Sums::exact, accumulate, dweight);
}

}  // namespace hyperslab::nn
