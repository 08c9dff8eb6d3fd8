// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {

/// Rows that are used, of so many; all without a count. More than fit end the kernel with an error.
__device__ inline Dim used_rows(const std::int32_t* used, Dim rows) {
  if (used == nullptr) return rows;
  if (*used < 0 || *used > rows) __trap();
  return *used;
}

}  // namespace hyperslab::ops::cuda
