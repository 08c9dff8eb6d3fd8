// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/quantized.hpp"

// Products of few rows, at most kMatrixVectorRows, which read every weight once from memory and do
// little else. The same call gives the same bits.

namespace hyperslab::ops::cuda {

/// y = x weight^T + bias as linear_forward. Returns false, and enqueues nothing, if the operands do
/// not suit: they must be bf16 or f16, K a multiple of 8, x and weight aligned to 16 bytes.
[[nodiscard]] bool matrix_vector(Context& ctx, CView x, CView weight, CView bias, View y);

/// The same of quantized weights; takes every operand.
void quantized_matrix_vector(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                             View y);

/// The same of one row, if the operands suit: x of 16 bits, weights of int8, or of int4 in groups
/// of a power of two from 32 on, x and weights aligned to 16 bytes, K at most about 18,000. Returns
/// false, and enqueues nothing, if not. x is rounded to 16 bits of the largest among its neighbors.
[[nodiscard]] bool quantized_row(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                                 View y);

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
