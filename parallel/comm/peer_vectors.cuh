// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Sums of values that another GPU wrote and this one's, by elements or by vectors of them.

namespace hyperslab::comm {

__device__ inline float widened(float value) { return value; }
__device__ inline float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widened(__half value) { return __half2float(value); }
__device__ inline void round_to(float value, float& out) { out = value; }
__device__ inline void round_to(float value, __nv_bfloat16& out) {
  out = __float2bfloat16_rn(value);
}
__device__ inline void round_to(float value, __half& out) { out = __float2half_rn(value); }

/// a + b in f32, rounded: of elements, or of vectors of them.
template <class T>
__device__ T sum_of(T a, T b) {
  T sum;
  round_to(widened(a) + widened(b), sum);
  return sum;
}
template <class T>
struct alignas(16) Vector {
  static constexpr int kCount = 16 / static_cast<int>(sizeof(T));
  T each[kCount];
};
template <class T>
__device__ Vector<T> sum_of(const Vector<T>& a, const Vector<T>& b) {
  Vector<T> sum;
#pragma unroll
  for (int i = 0; i < Vector<T>::kCount; ++i) sum.each[i] = sum_of(a.each[i], b.each[i]);
  return sum;
}

/// Loads memory that another GPU may have written since this one last read it.
template <class T>
__device__ T load_past_l1(const T* from) {
  return __ldcg(from);
}
template <class T>
__device__ Vector<T> load_past_l1(const Vector<T>* from) {
  const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(from));
  return *reinterpret_cast<const Vector<T>*>(&raw);
}

}  // namespace hyperslab::comm
