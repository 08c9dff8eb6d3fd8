// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <initializer_list>

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops::cuda {

/// The shape in which the copy engine (TMA) takes an array: boxes of it, zeros beyond its ends.
struct TensorMapShape {
  CUtensorMapDataType type;
  std::initializer_list<Dim> sizes;          ///< elements, the innermost dimension first
  std::initializer_list<Dim> strides_bytes;  ///< for all dimensions but the innermost
  std::initializer_list<Dim> box;            ///< elements of a box
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

/// Host work of some hundred ns; no call of the device. Throws Error with `op` if the driver
/// refuses it.
[[nodiscard]] CUtensorMap tensor_map(const char* op, const void* from, const TensorMapShape& shape);

}  // namespace hyperslab::ops::cuda
