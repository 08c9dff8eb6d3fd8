// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "hyperslab/core/dtype.hpp"

namespace hyperslab::comm {

/// True if add_received() adds elements of the type.
[[nodiscard]] constexpr bool adds_received(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Enqueues sum += received, of `bytes` bytes that another GPU wrote before the stream came here.
/// 16-bit sums are rounded once, from f32.
[[nodiscard]] cudaError_t add_received(cudaStream_t stream, DType dtype, void* sum,
                                       const void* received, std::size_t bytes);

}  // namespace hyperslab::comm
