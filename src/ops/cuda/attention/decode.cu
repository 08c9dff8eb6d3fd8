// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include "decode.cuh"

// The blocks that share the keys of a head are a cluster, and read each other's sums from shared
// memory.

namespace hyperslab::ops::cuda {
namespace {

/// The sums of a cluster's blocks, of which this one has `mine`, and its share of the output's
/// columns. All loads from other blocks are in progress at once.
template <int D, class T>
__device__ void merge_cluster(const CachedCall<T>& call, const DecodePlace& place, Partial<D>& mine,
                              T* out) {
  constexpr int kMost = static_cast<int>(kMostSplits);
  static_assert(D <= kCachedThreads);  // a column a thread, even of one block
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const auto splits = static_cast<int>(call.splits);
  const unsigned c = place.thread * static_cast<unsigned>(splits) + blockIdx.x;
  float weights[kMost];
  float sums[kMost];
  float values[kMost] = {};
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const Partial<D>* other = cluster.map_shared_rank(&mine, i < splits ? i : 0);
    weights[i] = i < splits ? other->top : -INFINITY;
    sums[i] = i < splits ? other->sum : 0.0F;
    if (i < splits && c < D) values[i] = other->values[c];
  }
  weigh_with_sink(call, place.head, weights, sums);
  float value = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) value += weights[i] * values[i];
  if (c < D) out[c] = from_real<T>(value);
  cluster.sync();  // the others have read mine
}

/// Block (split, head, sample), the splits of a head a cluster; heads of kLanes * 16 bytes.
template <int kLanes, class T>
__global__ void __launch_bounds__(kCachedThreads) attend_decode_kernel(DecodeCall<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int D = kLanes * kVector<T>;
  __shared__ Partial<D> mine;
  __shared__ WarpSums<kCachedWarps, D> warps;
  overlap();
  wait_for_earlier();
  const CachedCall<T>& cached = call.cached;
  const DecodePlace place = {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                             static_cast<int>(blockIdx.x), static_cast<int>(cached.past.get()),
                             threadIdx.y * 32 + threadIdx.x};
  const KeySplits splits = splits_of(cached, place.past, static_cast<int>(kLeastKeys));
  attend_split<kLanes, kCachedThreads>(
      call, place, keys_of(splits, place), warps, [] { __syncthreads(); }, mine);
  merge_cluster<D>(cached, place, mine,
                   cached.out + (place.sample * cached.heads + place.head) * D);
#endif
}

template <int kLanes, class T>
void launch(Context& ctx, const DecodeCall<T>& call, Dim B) {
  const auto splits = static_cast<unsigned>(call.cached.splits);
  Grid grid = {{splits, static_cast<unsigned>(call.cached.heads), static_cast<unsigned>(B)},
               dim3(32, kCachedWarps)};
  grid.cluster = splits;
  launch_overlapping(ctx, kCachedName, attend_decode_kernel<kLanes, T>, grid, call);
}

}  // namespace

void attention_decode(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                      const RotaryTables& tables, View qkv, const KeyValueCache& cache, View out) {
  with_element(qkv.dtype(), kCachedName, [&]<class T>(T) {
    const auto call = decode_call<T>(ctx, kCachedName, layout, scores, tables, qkv, cache, out);
    const Dim B = qkv.shape()[0];
    switch (layout.head_width / kVector<T>) {
      case 4: return launch<4>(ctx, call, B);
      case 8: return launch<8>(ctx, call, B);
      case 16: return launch<16>(ctx, call, B);
      default: return launch<32>(ctx, call, B);
    }
  });
}

}  // namespace hyperslab::ops::cuda
