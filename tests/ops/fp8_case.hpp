// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// The arrays of a matrix in 8-bit floats.
struct StoredFp8 {
  ops::Fp8Format format;
  ops::Fp8Scaling scaling;
  Tensor values, amax, scales;

  [[nodiscard]] ops::Fp8Matrix matrix() {
    return {format, scaling, values.view(), amax.view(), scales.view()};
  }
};

[[nodiscard]] inline StoredFp8 stored_fp8(ops::Fp8Format format, ops::Fp8Scaling scaling, Dim rows,
                                          Dim columns) {
  const Shape scales = ops::fp8_scales_shape(scaling, {rows, columns});
  return {format, scaling, filled_tensor(DType::u8, {rows, columns}, 1),
          filled_tensor(DType::f32, scales, -1), filled_tensor(DType::f32, scales, -1)};
}

/// Columns of the transpose of a matrix of so many rows.
[[nodiscard]] inline Dim padded(Dim rows) { return round_up(rows, ops::kFp8Multiple); }

}  // namespace hyperslab::test
