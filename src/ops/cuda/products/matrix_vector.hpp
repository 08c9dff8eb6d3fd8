// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/quantized.hpp"

// Products of few rows, at most kMatrixVectorRows, which read every weight once from memory and do
// little else. The same call gives the same bits.

namespace hyperslab::ops::cuda {

/// The destination of a product: y (rows, M); or, of a gate and its gated values, y (rows, M / 2)
/// as gated_forward of the product.
struct RowsOutput {
  View y;
  bool gated = false;
  Activation activation = Activation::swiglu;  ///< if gated
};

/// quantized_linear_forward on every operand, for a few rows of x.
void quantized_matrix_vector(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                             View y);

/// linear_forward, gated or not, that reads the weights at the speed of the memory, of operands
/// that suits_plain_rows() has nothing against.
void plain_rows(Context& ctx, CView x, CView weight, CView bias, const RowsOutput& out);

/// True if quantized_row takes these: one row of x, weights of int8 or of int4 in groups of 32 to
/// 256 elements whose scales take a multiple of 16 bytes in a row, and K at most 18,432.
[[nodiscard]] bool suits_quantized_row(CView x, const CQuantizedMatrix& weight, bool gated);
/// quantized_linear_forward likewise. x is rounded to 16 bits of the largest among its neighbors.
void quantized_row(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                   const RowsOutput& out);

/// Rows of int8 with a scale each.
struct Int8Rows {
  const std::uint8_t* codes;  ///< (rows, K)
  const float* scales;        ///< (rows)
  Dim rows;
};
/// y = sum * row_scale * weight_scale + bias of exact sums, for any number of rows, though reading
/// the weights again for every eight.
void int8_matrix_vector(Context& ctx, const Int8Rows& x, const CQuantizedMatrix& weight, CView bias,
                        View y);

}  // namespace hyperslab::ops::cuda
