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
