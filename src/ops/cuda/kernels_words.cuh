// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels_common.cuh"

// Words of two 16-bit elements, the first in the lower half.

namespace hyperslab::ops::cuda {

template <class T>
__device__ std::uint32_t pack(float low, float high) {
  std::uint32_t out;
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&out, &pair, sizeof out);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&out, &pair, sizeof out);
  }
  return out;
}

template <class T>
__device__ float2 unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(word << 16U), __uint_as_float(word & 0xFFFF0000U)};
  } else {
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
  }
}

}  // namespace hyperslab::ops::cuda
