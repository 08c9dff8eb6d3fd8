// SPDX-License-Identifier: Apache-2.0
#include "cached.cuh"

// A block reads the keys of one key-value head once for up to kCachedPairs pairs of a new token and
// a query head. Several blocks share the keys of few pairs, and a second kernel adds up their
// sums.

namespace hyperslab::ops::cuda {
namespace {

/// The pairs of a tile, of which pair i is query head i % group of new token i / group.
struct Tile {
  Dim first;
  Dim last;
  __device__ Tile(Dim number, Dim pairs, Dim of_all)
      : first(number * pairs), last(min(first + pairs, of_all) - 1) {}
};

/// The partial result of a team of lanes for one pair. Elements of 16 bits take the fast
/// exponential.
template <int N>
struct PairSum {
  float top = -INFINITY;
  float sum = 0;
  float values[N] = {};

  template <int kKeys>
  __device__ void add(const float (&score)[kKeys], const float (&value)[kKeys][N]) {
    float larger = top;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) larger = fmaxf(larger, score[k]);
    if (larger == -INFINITY) return;
    const float shrink = exponential<N == kVector<bf16>>(top - larger);
    top = larger;
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= shrink;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const float weight = exponential<N == kVector<bf16>>(score[k] - top);
      sum += weight;
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += weight * value[k][i];
    }
  }
  /// Adds the sums of the lane `offset` away.
  __device__ void merge_lane(int offset) {
    const float other_top = __shfl_xor_sync(0xFFFFFFFFU, top, offset);
    const float other_sum = __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    const float larger = fmaxf(top, other_top);
    const float mine = top == -INFINITY ? 0.0F : exponential<N == kVector<bf16>>(top - larger);
    const float others =
        other_top == -INFINITY ? 0.0F : exponential<N == kVector<bf16>>(other_top - larger);
    top = larger;
    sum = mine * sum + others * other_sum;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = mine * values[i] + others * __shfl_xor_sync(0xFFFFFFFFU, values[i], offset);
    }
  }
};

/// Shared memory of a block.
template <int D, int kPairs>
struct TileMemory {
  alignas(16) float q[kPairs][D];
  float values[kCachedWarps][D];
  float tops[kCachedWarps];
  float sums[kCachedWarps];
};

/// The positions of the pairs of a block's tile.
template <int kPairs>
struct PairBounds {
  Dim begin[kPairs];
  Dim end[kPairs];
};

/// Adds keys [begin, end) to all pairs; teams of kLanes lanes take kKeys keys in turn, each lane 16
/// bytes of a row.
template <int kLanes, int kPairs, class T>
__device__ void attend_keys(const CachedCall<T>& call, Dim sample, Dim kv_head, Dim begin, Dim end,
                            const float (&q)[kPairs][kLanes * kVector<T>],
                            const PairBounds<kPairs>& seen, PairSum<kVector<T>> (&parts)[kPairs]) {
  constexpr int N = kVector<T>;
  constexpr int kKeys = kPairs > 1 ? 2 : 4;  // at once: no more fit into registers
  constexpr int kTeams = kCachedThreads / kLanes;
  const Dim team = threadIdx.x / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * N;
  const Dim offset = kv_head * call.head_width + column;
  // The bound is the whole block's, so that all lanes take part in the sums.
  for (Dim first = begin; first < end; first += kTeams * kKeys) {
    Vec<T, N> raw_keys[kKeys] = {};
    Vec<T, N> raw_values[kKeys] = {};
    bool has_key[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const Dim j = first + k * kTeams + team;
      const Dim row = j < end ? call.row_of(sample, j) : -1;
      has_key[k] = row >= 0;
      if (!has_key[k]) continue;
      raw_keys[k] = load_raw<N>(call.keys + row + offset);
      raw_values[k] = load_raw<N>(call.values + row + offset);
    }
    float values[kKeys][N];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[k][i] = to_real(raw_values[k].at[i]);
    }
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      float query[N];
      load<N>(&q[p][column], query);
      float score[kKeys];
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) dot += query[i] * to_real(raw_keys[k].at[i]);
#pragma unroll
        for (int lane = kLanes / 2; lane > 0; lane >>= 1) {
          dot += __shfl_xor_sync(0xFFFFFFFFU, dot, lane);
        }
        const Dim j = first + k * kTeams + team;
        const bool is_seen = has_key[k] && j >= seen.begin[p] && j < seen.end[p];
        score[k] = is_seen ? call.score(dot) : -INFINITY;
      }
      parts[p].add(score, values);
    }
  }
}

/// The sum of a block's warps of one pair, written to the output or to this split's room.
template <int D, int kPairs, class T>
__device__ void write_pair(const CachedCall<T>& call, const TileMemory<D, kPairs>& memory,
                           Dim query, Dim head, Dim split) {
  OnlineSum<false> total;
  for (int warp = 0; warp < kCachedWarps; ++warp) {
    if (memory.sums[warp] > 0) total.merge(memory.tops[warp], memory.sums[warp]);
  }
  if (call.sinks != nullptr && call.splits == 1) total.merge(to_real(call.sinks[head]), 1.0F);
  for (int c = static_cast<int>(threadIdx.x); c < D; c += kCachedThreads) {
    float value = 0;
    for (int warp = 0; warp < kCachedWarps; ++warp) {
      if (memory.sums[warp] > 0) {
        value += expf(memory.tops[warp] - total.top) * memory.values[warp][c];
      }
    }
    if (call.splits == 1) {
      call.out[(query * call.heads + head) * D + c] =
          from_real<T>(total.sum == 0 ? 0.0F : value / total.sum);
      continue;
    }
    float* partial = call.partial_of(query, head, split);
    partial[c] = value;
    if (c == 0) {
      partial[D] = total.top;
      partial[D + 1] = total.sum;
    }
  }
}

/// Block (tile and split, key-value head, sample), of heads that are kLanes * 16 bytes wide.
template <int kLanes, int kPairs, class T>
__global__ void __launch_bounds__(kCachedThreads, kPairs > 4 ? 1 : 2)
    attend_teams_kernel(CachedCall<T> call) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  __shared__ TileMemory<D, kPairs> memory;
  overlap();
  wait_for_earlier();
  const Dim number = blockIdx.x / call.splits;
  const Dim split = blockIdx.x - number * call.splits;
  const Dim kv_head = blockIdx.y;
  const Dim sample = blockIdx.z;
  const Dim group = call.group();
  const Tile tile(number, kPairs, call.new_tokens * group);
  const int pairs = static_cast<int>(tile.last - tile.first) + 1;
  PairBounds<kPairs> seen;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    seen.end[p] = p < pairs ? call.end_of(sample, (tile.first + p) / group) : 0;
    seen.begin[p] = call.begin_of(seen.end[p]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kPairs * D; i += kCachedThreads) {
    const int p = i / D;
    const Dim token = (tile.first + p) / group;
    const Dim head = kv_head * group + (tile.first + p) % group;
    const Dim query = sample * call.new_tokens + token;
    memory.q[p][i % D] =
        p < pairs ? call.scale * to_real(call.qkv[query * call.packed() + head * D + i % D]) : 0.0F;
  }
  __syncthreads();
  const Dim begin = seen.begin[0];
  const Dim end = call.end_of(sample, tile.last / group);
  const Dim share = (end - begin + call.splits - 1) / call.splits;
  const Dim from = begin + split * share;
  PairSum<N> parts[kPairs];
  attend_keys<kLanes, kPairs>(call, sample, kv_head, from, min(end, from + share), memory.q, seen,
                              parts);
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
#pragma unroll
    for (int offset = kLanes; offset < 32; offset <<= 1) parts[p].merge_lane(offset);
    if (lane < kLanes) {
#pragma unroll
      for (int i = 0; i < N; ++i) memory.values[warp][lane * N + i] = parts[p].values[i];
    }
    if (lane == 0) {
      memory.tops[warp] = parts[p].top;
      memory.sums[warp] = parts[p].sum;
    }
    __syncthreads();
    if (p < pairs) {
      const Dim pair = tile.first + p;
      write_pair(call, memory, sample * call.new_tokens + pair / group,
                 kv_head * group + pair % group, split);
    }
    __syncthreads();
  }
}

/// Block (new token, head, sample): the splits, in their order.
template <class T>
__global__ void __launch_bounds__(128) merge_teams_kernel(CachedCall<T> call) {
  overlap();
  wait_for_earlier();
  const Dim D = call.head_width;
  const Dim query = blockIdx.z * call.new_tokens + blockIdx.x;
  OnlineSum<false> total;
  for (Dim i = 0; i < call.splits; ++i) {
    const float* partial = call.partial_of(query, blockIdx.y, i);
    if (partial[D + 1] > 0) total.merge(partial[D], partial[D + 1]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[blockIdx.y]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += blockDim.x) {
    float value = 0;
    for (Dim i = 0; i < call.splits; ++i) {
      const float* partial = call.partial_of(query, blockIdx.y, i);
      if (partial[D + 1] > 0) value += expf(partial[D] - total.top) * partial[c];
    }
    call.out[(query * call.heads + blockIdx.y) * D + c] =
        from_real<T>(total.sum == 0 ? 0.0F : value / total.sum);
  }
}

template <int kLanes, int kPairs, class T>
void launch(Context& ctx, CachedCall<T> call, Dim B) {
  const Dim tiles = ceil_divide(call.new_tokens * (call.heads / call.kv_heads), Dim{kPairs});
  call.splits = attention_cached_splits(tiles * call.kv_heads * B, call.room);
  launch_overlapping(ctx, kCachedName, attend_teams_kernel<kLanes, kPairs, T>,
                     {blocks_of(tiles * call.splits, call.kv_heads, B), kCachedThreads}, call);
  if (call.splits == 1) return;
  launch_overlapping(ctx, kCachedName, merge_teams_kernel<T>,
                     {blocks_of(call.new_tokens, call.heads, B), 128}, call);
}

/// The fewest pairs a tile that hold a token's, or as many as a tile can have.
template <int kLanes, class T>
void launch_pairs(Context& ctx, const CachedCall<T>& call, Dim B) {
  const Dim pairs = call.new_tokens * (call.heads / call.kv_heads);
  if (pairs <= 1) return launch<kLanes, 1>(ctx, call, B);
  if (pairs <= 2) return launch<kLanes, 2>(ctx, call, B);
  if (pairs <= 4) return launch<kLanes, 4>(ctx, call, B);
  static_assert(kCachedPairs == 8);
  launch<kLanes, 8>(ctx, call, B);
}

}  // namespace

void attention_cached_by_teams(Context& ctx, const HeadLayout& layout,
                               const AttentionScores& scores, const RotaryTables& tables, View qkv,
                               const KeyValueCache& cache, View out) {
  place_new_tokens(ctx, layout, scores, tables, qkv, cache, out);
  with_element(qkv.dtype(), kCachedName, [&]<class T>(T) {
    const auto call = cached_call<T>(ctx, kCachedName, layout, scores, qkv, cache, out);
    const Dim B = qkv.shape()[0];
    switch (layout.head_width / kVector<T>) {
      case 4: return launch_pairs<4>(ctx, call, B);
      case 8: return launch_pairs<8>(ctx, call, B);
      case 16: return launch_pairs<16>(ctx, call, B);
      default: return launch_pairs<32>(ctx, call, B);
    }
  });
}

}  // namespace hyperslab::ops::cuda
