// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quantized_product.hpp"

// Needs no CUDA, so that any build can plan for GPUs.

namespace hyperslab::ops::cuda {

/// Products of so few rows read the weights as they are stored.
inline constexpr Dim kMatrixVectorRows = 8;

/// Many rows: the widened weights; with int8 activations codes and scales of x, and sums in i32.
[[nodiscard]] constexpr std::size_t quantized_linear_forward_workspace(
    const QuantizedProduct& product) {
  const auto [rows, M, K, format, activations, dtype] = product;
  if (activations == ActivationFormat::dynamic_int8) {
    return static_cast<std::size_t>(rows * K + rows * 4 + rows * M * 4 + 256);
  }
  return rows <= kMatrixVectorRows ? 0 : static_cast<std::size_t>(M * K) * size_of(dtype);
}

}  // namespace hyperslab::ops::cuda
