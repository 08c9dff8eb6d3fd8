// SPDX-License-Identifier: Apache-2.0
// The amax of values that a kernel reads or writes, for the scales of 8-bit floats. The order
// of threads does not matter to it, so its bits are the same in every run.
#pragma once

#include "common.cuh"

namespace hyperslab::ops::cuda {

/// The bits of a magnitude, which are ordered as magnitudes are, with NaN above all.
__device__ inline unsigned magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7FFFFFFFU;
}

__device__ inline void raise(float* amax, unsigned bits) {
  atomicMax(reinterpret_cast<unsigned*>(amax), bits);
}

/// Raises `amax` to the maximum of `most` in a block of kThreads threads; all call it, once.
template <int kThreads>
__device__ void raise_amax(float* amax, unsigned most) {
  constexpr unsigned kWholeWarp = 0xFFFFFFFFU;
  __shared__ unsigned of_warps[kThreads / 32];
  most = __reduce_max_sync(kWholeWarp, most);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = threadIdx.x < kThreads / 32 ? of_warps[threadIdx.x] : 0;
  most = __reduce_max_sync(kWholeWarp, most);
  // The stored value only grows, so most blocks need not raise it.
  if (threadIdx.x == 0 && most > *reinterpret_cast<const volatile unsigned*>(amax)) {
    raise(amax, most);
  }
}

/// Before a kernel raises it.
inline void clear_amax(Context& ctx, const char* op, View amax) {
  if (!amax) return;
  check_cuda(cudaMemsetAsync(amax.raw(), 0, amax.bytes(), ctx.stream().cuda()), op,
             "cudaMemsetAsync");
}

inline constexpr int kEachThreads = 256;

/// each_kernel of an operation whose at() returns the magnitude_bits of the amax that it stored.
template <int N, class Op>
__global__ void __launch_bounds__(kEachThreads) each_amax_kernel(Op op, Dim count, float* amax) {
  overlap();
  wait_for_earlier();
  const Dim first = static_cast<Dim>(blockIdx.x) * kEachThreads + threadIdx.x;
  const Dim stride = static_cast<Dim>(gridDim.x) * kEachThreads;
  const Dim vectors = count / N;
  unsigned most = 0;
  for (Dim v = first; v < vectors; v += stride) most = max(most, op.template at<N>(v * N));
  if constexpr (N > 1) {
    const Dim rest = vectors * N + first;
    if (rest < count) most = max(most, op.template at<1>(rest));
  }
  raise_amax<kEachThreads>(amax, most);
}

/// for_each, and the amax of the stored values if `amax` is there.
template <class Op>
void for_each_amax(Context& ctx, const char* name, CView all, bool vectors, const Op& op,
                   View amax) {
  if (!amax) return for_each(ctx, name, all, vectors, op);
  clear_amax(ctx, name, amax);
  if (all.numel() == 0) return;
  constexpr Dim kItemsOfThread = 4;  // fewer blocks, each of which ends with a barrier
  constexpr Dim kMostBlocks = Dim{1} << 20;
  const Dim items = vectors ? ceil_divide(all.numel(), Op::kWidth) : all.numel();
  const auto blocks = static_cast<unsigned>(
      std::min(kMostBlocks, ceil_divide(items, kItemsOfThread * kEachThreads)));
  const auto kernel = vectors ? each_amax_kernel<Op::kWidth, Op> : each_amax_kernel<1, Op>;
  launch_waiting(ctx, name, rows_of(all), kernel, {blocks, kEachThreads}, op, all.numel(),
                 amax.data<float>());
}

}  // namespace hyperslab::ops::cuda
