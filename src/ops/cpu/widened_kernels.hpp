// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops::cpu {

/// Activation rows that the kernels take at once.
inline constexpr Dim kWidenedRows = 4;

/// Up to kWidenedRows rows of activations. Formats of four bits read them split: of each row first
/// the even elements, then the odd ones.
struct FloatRows {
  const float* data;
  Dim rows;
  Dim K;
};

/// True if the AVX-512 kernels can read such a matrix: groups of whole vectors.
[[nodiscard]] bool widened_kernels_read(const CQuantizedMatrix& weight);

/// sums[row * 4 + i]: x[row] times the widened weight row first + i, in f32, by AVX-512;
/// weight_rows is 4 or 1.
void widened_dots(const FloatRows& x, const CQuantizedMatrix& weight, Dim first, int weight_rows,
                  float* sums);

}  // namespace hyperslab::ops::cpu
