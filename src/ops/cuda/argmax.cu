// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include "kernels_common.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned kParts = 8;  // blocks of a row, where there are clusters

/// A value with its column: of two the greater one has the larger value, or the same in an earlier
/// column. 0: none.
using Candidate = unsigned long long;

__device__ Candidate candidate(float value, Dim column) {
  const auto bits = __float_as_uint(value == 0 ? 0.0F : value);  // zeros of both signs are equal
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<Candidate>(ordered) << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(column));
}

template <class T>
struct ArgmaxCall {
  const T* x;
  std::int32_t* index;
  Dim V;
  Dim columns;
};

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

/// What the blocks of a row found, if they are a cluster; that of the first block is whole then.
__device__ void merge_blocks(Found& found) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ Found mine;
  const auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) mine = found;
  cluster.sync();
  if (blockIdx.x == 0 && threadIdx.x < gridDim.x) {
    found = *cluster.map_shared_rank(&mine, threadIdx.x);
  }
  cluster.sync();
  if (threadIdx.x < 32) found.merge_lanes();
#endif
}

/// Block (part, row), the parts of a row a cluster; N values in an access.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) argmax_kernel(ArgmaxCall<T> call) {
  __shared__ Found of_warps[kThreads / 32];
  overlap();
  wait_for_earlier();
  const T* row = call.x + blockIdx.y * call.columns;
  Found found;
  const Dim threads = Dim{kThreads} * gridDim.x;
  for (Dim first = (static_cast<Dim>(blockIdx.x) * kThreads + threadIdx.x) * N; first < call.V;
       first += threads * N) {
    float value[N];
    load<N>(row + first, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + i < call.V) found.look_at(value[i], first + i);
    }
  }
  found.merge_lanes();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = found;
  __syncthreads();
  found = threadIdx.x < 32 ? of_warps[threadIdx.x] : Found();
  found.merge_lanes();
  if (gridDim.x > 1) merge_blocks(found);
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const auto column = 0xFFFFFFFFU - static_cast<std::uint32_t>(found.best);
  call.index[blockIdx.y] = found.is_bad || found.best == 0 ? -1 : static_cast<std::int32_t>(column);
}

}  // namespace

void argmax(Context& ctx, CView x, Dim V, View index) {
  if (x.numel() == 0) return;
  with_element(x.dtype(), "argmax", [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const auto [rows, columns] = x.dims<2>("argmax x");
    const ArgmaxCall<T> call = {x.data<T>(), index.data<std::int32_t>(), V, columns};
    const bool vectors = columns % N == 0 && aligned(call.x);
    Grid grid = {{kOverlaps ? kParts : 1, static_cast<unsigned>(rows)}, kThreads};
    grid.cluster = grid.blocks.x;
    launch_overlapping(ctx, "argmax", vectors ? argmax_kernel<N, T> : argmax_kernel<1, T>, grid,
                       call);
  });
}

}  // namespace hyperslab::ops::cuda
