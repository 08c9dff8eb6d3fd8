// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include "attention_cached.cuh"
#include "attention_decode.hpp"

// One new token of each sample on its cache: rope, the new rows of the cache, and attention, whose
// keys the blocks of a cluster share. They read the new key and value from qkv, so that none waits
// for another one to write the cache, and read each other's sums from shared memory.

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_cached_forward";
constexpr Dim kMostSplits = 8;  // blocks of a cluster on any GPU that has clusters

template <class T>
struct DecodeCall {
  CachedCall<T> cached;
  const float* cosines;  ///< (positions, half), or null without rope
  const float* sines;
  Dim half;
};

/// Columns of a head from `column` on, turned as rope() does.
template <int N, class T>
__device__ void load_turned(const DecodeCall<T>& call, const T* head, Dim column, Dim position,
                            float (&to)[N]) {
  load<N>(head + column, to);
  if (call.cosines == nullptr || column >= 2 * call.half) return;
  const bool upper = column >= call.half;
  const Dim angle = position * call.half + (upper ? column - call.half : column);
  float other[N];
  float cosine[N];
  float sine[N];
  load<N>(upper ? head + column - call.half : head + column + call.half, other);
  load<N>(call.cosines + angle, cosine);
  load<N>(call.sines + angle, sine);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    to[i] = rounded<T>(to[i] * cosine[i] + (upper ? other[i] : -other[i]) * sine[i]);
  }
}

/// The newest key and value, which the first team adds and the first head of several that share
/// them writes to the cache.
template <int kLanes, class T>
__device__ void add_newest(const DecodeCall<T>& call, const float (&q)[kVector<T>], Dim past,
                           const CachedHead<T>& head, TeamSum<kVector<T>>& part) {
  constexpr int N = kVector<T>;
  const CachedCall<T>& cached = call.cached;
  const Dim D = cached.head_width;
  const Dim sharing = cached.heads / cached.kv_heads;
  const Dim kv_head = blockIdx.y / sharing;
  const T* keys = cached.qkv + blockIdx.z * cached.packed + cached.heads * D;
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  const Dim column = thread % kLanes * N;
  float key[N];
  load_turned<N>(call, keys + kv_head * D, column, past, key);
  const Vec<T, N> value[1] = {load_raw<N>(keys + (cached.kv_heads + kv_head) * D + column)};
  float dot = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) dot += q[i] * key[i];
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
    dot += __shfl_xor_sync(0xFFFFFFFFU, dot, offset);
  }
  const float score[1] = {thread < kLanes ? head.capped(dot) : -INFINITY};
  part.add(score, value);
  if (thread >= kLanes || blockIdx.y % sharing != 0) return;
  const Dim row = (blockIdx.z * cached.max_tokens + past) * head.row + kv_head * D + column;
  store<N>(cached.key_cache + row, key);
  *reinterpret_cast<Vec<T, N>*>(cached.value_cache + row) = value[0];
}

/// A block's attention to its keys: the sum of the values, not yet divided, with what they weigh.
template <int D>
struct Partial {
  float values[D];
  float top;
  float sum;
};

/// What several sums weigh in their total: e^(top - largest top), and the total of their sums. One
/// of nothing has the top -infinity.
template <int N>
__device__ OnlineSum<false> weigh(float (&tops)[N], const float (&sums)[N]) {
  OnlineSum<false> total;
#pragma unroll
  for (int i = 0; i < N; ++i) total.top = fmaxf(total.top, tops[i]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    tops[i] = tops[i] == -INFINITY ? 0.0F : expf(tops[i] - total.top);
    total.sum += tops[i] * sums[i];
  }
  return total;
}

/// The sums of a block's teams.
template <int kLanes, class T>
__device__ void merge_teams(const TeamSum<kVector<T>>& part, Partial<kLanes * kVector<T>>& to) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  constexpr int kTeams = kCachedWarps * 32 / kLanes;
  __shared__ float values[kTeams][D];
  __shared__ float tops[kTeams];
  __shared__ float sums[kTeams];
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  const unsigned team = thread / kLanes;
#pragma unroll
  for (int i = 0; i < N; ++i) values[team][thread % kLanes * N + i] = part.values[i];
  if (thread % kLanes == 0) {
    tops[team] = part.top;
    sums[team] = part.sum;
  }
  __syncthreads();
  float weights[kTeams];
  float of_teams[kTeams];
#pragma unroll
  for (int i = 0; i < kTeams; ++i) {
    weights[i] = tops[i];
    of_teams[i] = sums[i];
  }
  const OnlineSum<false> total = weigh(weights, of_teams);
  for (unsigned c = thread; c < D; c += 32 * kCachedWarps) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kTeams; ++i) value += weights[i] * values[i][c];
    to.values[c] = value;
  }
  if (thread == 0) {
    to.top = total.top;
    to.sum = total.sum;
  }
}

/// The sums of a cluster's blocks, of which this one has `mine`, and its share of the output's
/// columns. All loads from other blocks are under way at once.
template <int D, class T>
__device__ void merge_cluster(const CachedCall<T>& call, Partial<D>& mine, T* out) {
  constexpr int kMost = static_cast<int>(kMostSplits);
  static_assert(D <= 32 * kCachedWarps);  // a column a thread, even of one block
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const auto splits = static_cast<int>(call.splits);
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  const unsigned c = thread * static_cast<unsigned>(splits) + blockIdx.x;
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
  OnlineSum<false> total = weigh(weights, sums);
  float scale = 1.0F;
  if (call.sinks != nullptr) {
    const float top = total.top;
    total.merge(to_real(call.sinks[blockIdx.y]), 1.0F);
    scale = expf(top - total.top);
  }
  float value = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) value += weights[i] * values[i];
  if (c < D) out[c] = from_real<T>(value * scale / total.sum);
  cluster.sync();  // the others have read mine
}

/// Block (split, head, sample), the splits of a head a cluster; heads of kLanes * 16 bytes.
template <int kLanes, class T>
__global__ void __launch_bounds__(32 * kCachedWarps) attend_decode_kernel(DecodeCall<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  __shared__ Partial<D> mine;
  overlap();
  wait_for_earlier();
  const CachedCall<T>& cached = call.cached;
  const Dim head = blockIdx.y;
  const Dim past = cached.past.get();
  const Dim first = cached.begin_of(0);
  const Dim share = cached.keys_of_split(past + 1 - first);
  const Dim begin = first + blockIdx.x * share;
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  float q[N];
  load_turned<N>(call, cached.qkv + blockIdx.z * cached.packed + head * D, thread % kLanes * N,
                 past, q);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] *= cached.scale;
  const Dim row = cached.kv_heads * D;
  const Dim at = blockIdx.z * cached.max_tokens * row + head / (cached.heads / cached.kv_heads) * D;
  const CachedHead<T> keys = {cached.key_cache + at,    cached.value_cache + at, row, D,
                              min(past, begin + share), cached.softcap};
  TeamSum<N> part = attend_team<kLanes>(q, keys, begin);
  if (begin <= past && past < begin + share) add_newest<kLanes>(call, q, past, keys, part);
  merge_teams<kLanes, T>(part, mine);
  merge_cluster<D>(cached, mine, cached.out + (blockIdx.z * cached.heads + head) * D);
#endif
}

template <int kLanes, class T>
void launch(Context& ctx, const DecodeCall<T>& call, Dim B) {
  const auto splits = static_cast<unsigned>(call.cached.splits);
  Grid grid = {{splits, static_cast<unsigned>(call.cached.heads), static_cast<unsigned>(B)},
               dim3(32, kCachedWarps)};
  grid.cluster = splits;
  launch_overlapping(ctx, kName, attend_decode_kernel<kLanes, T>, grid, call);
}

}  // namespace

bool suits_attention_decode(const HeadLayout& layout, const AttentionScores& scores,
                            const RotaryTables& tables, CView qkv, const KeyValueCache& cache) {
  const bool causal = scores.mask.kind == AttentionMask::Kind::causal;
  if (!kOverlaps || qkv.shape()[1] != 1 || qkv.numel() == 0 || !causal) return false;
  if (qkv.dtype() != DType::f32 && qkv.dtype() != DType::bf16 && qkv.dtype() != DType::f16) {
    return false;
  }
  const auto N = static_cast<Dim>(16 / size_of(qkv.dtype()));
  const Dim lanes = layout.head_width % N == 0 ? layout.head_width / N : 0;
  if (lanes != 4 && lanes != 8 && lanes != 16 && lanes != 32) return false;
  return (!tables.cosines || tables.cosines.shape()[1] % N == 0) &&
         aligned(qkv.raw(), cache.keys.raw(), cache.values.raw(), tables.cosines.raw(),
                 tables.sines.raw());
}

void attention_decode(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                      const RotaryTables& tables, CView qkv, const KeyValueCache& cache, View out) {
  with_element(qkv.dtype(), kName, [&]<class T>(T) {
    DecodeCall<T> call = {cached_call<T>(ctx, kName, layout, scores, qkv, cache, out),
                          optional_data<float>(tables.cosines), optional_data<float>(tables.sines),
                          tables.cosines ? tables.cosines.shape()[1] : 0};
    call.cached.splits = std::min(call.cached.splits, kMostSplits);
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
