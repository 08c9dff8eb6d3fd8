// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include "candidate.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned kParts = 8;  // blocks of a row, where there are clusters

template <class T>
struct ArgmaxCall {
  const T* x;
  std::int32_t* index;
  Dim V;
  Dim columns;
};

/// Merges the results of a row's blocks, a cluster; the first block gets the whole result.
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
  found = merge_warps(found, of_warps);
  if (gridDim.x > 1) merge_blocks(found);
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  call.index[blockIdx.y] = found.is_bad || found.best == 0 ? -1 : column_of(found.best);
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
