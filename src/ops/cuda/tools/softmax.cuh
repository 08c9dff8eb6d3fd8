// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common.cuh"

namespace hyperslab::ops::cuda {

/// e^x; the fast one, for elements of 16 bits, is off by a few units of 1e-7 times |x|.
template <bool kFast>
__device__ float exponential(float x) {
  if constexpr (kFast) return __expf(x);
  return expf(x);
}

/// The largest value so far, and the sum of e^(value - largest) (Milakov & Gimelshein 2018,
/// algorithm 3).
template <bool kFast>
struct OnlineSum {
  float top = -INFINITY;
  float sum = 0;

  /// The value that is subtracted: finite while all values are -infinity, so that these add
  /// nothing.
  [[nodiscard]] __device__ static float shift(float top) { return top == -INFINITY ? 0.0F : top; }

  /// Adds the values and returns the largest of them.
  template <int N>
  __device__ float add(const float (&value)[N]) {
    float largest = value[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, value[i]);
    raise(largest);
    const float from = shift(top);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exponential<kFast>(value[i] - from);
    return largest;
  }
  __device__ void merge(float other_top, float other_sum) {
    raise(other_top);
    sum += other_top == top ? other_sum : other_sum * expf(other_top - top);
  }

 private:
  __device__ void raise(float larger) {
    if (larger > top) {
      sum *= expf(top - larger);
      top = larger;
    }
  }
};

/// Shared memory of row_total and row_min, for up to 32 warps.
struct SoftmaxScratch {
  float top[32];
  float sum[32];
  int least[32];
};

// The threads of a row: the block if kBlock, else the warp.

template <bool kBlock>
__device__ void row_barrier() {
  if constexpr (kBlock) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

/// The smallest value of the row, in thread 0 of it.
template <bool kBlock>
__device__ int row_min(int value, SoftmaxScratch& scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = min(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  if constexpr (kBlock) {
    if (threadIdx.x % 32 == 0) scratch.least[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; threadIdx.x == 0 && warp < static_cast<int>(blockDim.x / 32); ++warp) {
      value = min(value, scratch.least[warp]);
    }
  }
  return value;
}

template <bool kBlock>
__device__ float row_sum(float value, float* scratch) {
  if constexpr (kBlock) return block_sum(value, scratch);
  return warp_sum(value);
}

/// The sum over the row, in every thread.
template <bool kBlock, bool kFast>
__device__ OnlineSum<kFast> row_total(OnlineSum<kFast> mine, SoftmaxScratch& scratch) {
  float top = mine.top;
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, offset));
  }
  const float factor = mine.top == top ? 1.0F : expf(mine.top - top);
  OnlineSum<kFast> total;
  total.top = top;
  total.sum = warp_sum(mine.sum * factor);
  if constexpr (kBlock) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
      scratch.top[threadIdx.x / 32] = total.top;
      scratch.sum[threadIdx.x / 32] = total.sum;
    }
    __syncthreads();
    total.top = scratch.top[0];
    total.sum = scratch.sum[0];
    for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp) {
      total.merge(scratch.top[warp], scratch.sum[warp]);
    }
  }
  return total;
}

}  // namespace hyperslab::ops::cuda
