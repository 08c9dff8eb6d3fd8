// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common.cuh"

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

/// N neighboring elements as they lie in memory, in registers of two where elements have 16 bits:
/// the compiler would take such a vector apart and keep the elements.
template <int N, class T>
struct Packed {
  static constexpr bool kWords = N * sizeof(T) % 4 == 0;
  using Part = std::conditional_t<kWords, std::uint32_t, T>;
  static constexpr int kParts = kWords ? static_cast<int>(N * sizeof(T)) / 4 : N;

  Vec<Part, kParts> parts;

  __device__ void load(const T* from) { parts = *reinterpret_cast<const Vec<Part, kParts>*>(from); }
  [[nodiscard]] __device__ float operator[](int i) const {
    if constexpr (!kWords) {
      return to_real(parts.at[i]);
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(parts.at[i]);
    } else {
      const float2 pair = unpack<T>(parts.at[i / 2]);
      return i % 2 == 0 ? pair.x : pair.y;
    }
  }
  /// Ends the life of elements already unpacked: registers keep only the packed words.
  __device__ void keep_packed() {
    if constexpr (kWords) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) asm volatile("" : "+r"(parts.at[i]));
    }
  }
};

}  // namespace hyperslab::ops::cuda
