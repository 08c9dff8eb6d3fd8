// SPDX-License-Identifier: Apache-2.0
// Logits in the order of likelihood, for kernels that choose tokens.
#pragma once

#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {

/// A value with its column: of two the greater one has the larger value, or the same in an earlier
/// column. 0: none.
using Candidate = unsigned long long;

__device__ inline Candidate candidate(float value, Dim column) {
  const auto bits = __float_as_uint(value == 0 ? 0.0F : value);  // zeros of both signs are equal
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<Candidate>(ordered) << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(column));
}

__device__ inline std::int32_t column_of(Candidate found) {
  return static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<std::uint32_t>(found));
}
/// The value of a candidate.
__device__ inline float value_of(Candidate found) {
  const auto ordered = static_cast<std::uint32_t>(found >> 32);
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

/// The likeliest of the values that were looked at.
struct Found {
  Candidate best = 0;
  bool is_bad = false;  ///< a value that is NaN or infinity; -infinity is none

  __device__ void look_at(float value, Dim column) {
    is_bad = is_bad || !(value <= 3.402823466e38F);
    if (value >= -3.402823466e38F) best = max(best, candidate(value, column));
  }
  __device__ void merge_lanes() {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
      best = max(best, __shfl_xor_sync(0xFFFFFFFFU, best, offset));
    }
    is_bad = __any_sync(0xFFFFFFFFU, is_bad) != 0;
  }
};

/// The best candidate of a block's warps, for all its threads. `of_warps`: one for each warp.
__device__ inline Found merge_warps(Found found, Found* of_warps) {
  found.merge_lanes();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
  __syncthreads();
  found = threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : Found();
  found.merge_lanes();
  return found;
}

}  // namespace hyperslab::ops::cuda
