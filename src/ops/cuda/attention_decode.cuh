// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_cached.cuh"

// One new token of each sample on its cache: rope, the new rows of the cache, and attention, whose
// keys several blocks share. They read the new key and value from qkv, so that none waits for
// another one to write the cache.

namespace hyperslab::ops::cuda {

constexpr Dim kMostSplits = 8;  // blocks that share the keys of a head: of a cluster on any GPU

template <class T>
struct DecodeCall {
  CachedCall<T> cached;
  const float* cosines;  ///< (positions, half), or null without rope
  const float* sines;
  Dim half;
};

/// A thread's part of the work: a split of the keys of a head of a sample, with the block's others.
struct DecodePlace {
  int sample;
  int head;
  int split;
  int past;  ///< rows of the cache that are in use
  unsigned thread;
};

/// The split of the keys that a token sees.
struct KeySplits {
  int first;  ///< the first of them
  int keys;
  int share;  ///< keys of every split but the last that has any
  [[nodiscard]] __device__ int used() const { return (keys - first + share - 1) / share; }
};
/// least: keys of a split, so that few keys lie with few splits.
template <class T>
__device__ KeySplits splits_of(const CachedCall<T>& call, int past, int least) {
  const int keys = past + 1;
  const auto window = static_cast<int>(call.window);
  const auto splits = static_cast<int>(call.splits);
  const int first = window > 0 && keys > window ? keys - window : 0;
  return {first, keys, max((keys - first + splits - 1) / splits, least)};
}
/// The keys of a place, of which the newest, number `past`, is not in the cache yet.
struct DecodeKeys {
  int begin;
  int end;
};
__device__ inline DecodeKeys keys_of(const KeySplits& splits, const DecodePlace& place) {
  const int begin = splits.first + place.split * splits.share;
  return {begin, min(splits.keys, begin + splits.share)};
}

/// The key-value head of a place, and its first element in the cache.
template <class T>
__device__ int kv_head_of(const CachedCall<T>& call, const DecodePlace& place) {
  return place.head / (static_cast<int>(call.heads) / static_cast<int>(call.kv_heads));
}
template <class T>
__device__ Dim head_in_cache(const CachedCall<T>& call, const DecodePlace& place) {
  const Dim D = call.head_width;
  return place.sample * call.max_tokens * call.kv_heads * D + kv_head_of(call, place) * D;
}

/// A block's attention to its keys: the sum of the values, not yet divided, with their weight.
template <int D>
struct alignas(16) Partial {
  float values[D];
  float top;
  float sum;
};

/// Shared memory for the sums of kWarps warps.
template <int kWarps, int D>
struct WarpSums {
  float values[kWarps][D];
  float tops[kWarps];
  float sums[kWarps];
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
__device__ void add_newest(const DecodeCall<T>& call, const DecodePlace& place,
                           const float (&q)[kVector<T>], const CachedHead<T>& head,
                           TeamSum<kVector<T>>& part) {
  constexpr int N = kVector<T>;
  const CachedCall<T>& cached = call.cached;
  const Dim D = cached.head_width;
  const int kv_head = kv_head_of(cached, place);
  const T* keys = cached.qkv + place.sample * cached.packed + cached.heads * D;
  const Dim column = place.thread % kLanes * N;
  float key[N];
  load_turned<N>(call, keys + kv_head * D, column, place.past, key);
  const Vec<T, N> value[1] = {load_raw<N>(keys + (cached.kv_heads + kv_head) * D + column)};
  float dot = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) dot += q[i] * key[i];
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
    dot += __shfl_xor_sync(0xFFFFFFFFU, dot, offset);
  }
  const float score[1] = {place.thread < kLanes ? head.capped(dot) : -INFINITY};
  part.add(score, value);
  const bool is_first = place.head * cached.kv_heads == kv_head * cached.heads;
  if (place.thread >= kLanes || !is_first) return;
  const Dim at = head_in_cache(cached, place) + place.past * head.row + column;
  store<N>(cached.key_cache + at, key);
  *reinterpret_cast<Vec<T, N>*>(cached.value_cache + at) = value[0];
}

/// The weights of several sums in their total: e^(top - largest top), and the total of their sums.
/// One of nothing has the top -infinity.
template <bool kFast, int N>
__device__ OnlineSum<false> weigh(float (&tops)[N], const float (&sums)[N]) {
  OnlineSum<false> total;
#pragma unroll
  for (int i = 0; i < N; ++i) total.top = fmaxf(total.top, tops[i]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    tops[i] = tops[i] == -INFINITY ? 0.0F : exponential<kFast>(tops[i] - total.top);
    total.sum += tops[i] * sums[i];
  }
  return total;
}

/// weigh() with a sink beside the sums: tops[i] becomes the factor of the values' sum i.
template <int N, class T>
__device__ void weigh_with_sink(const CachedCall<T>& call, Dim head, float (&tops)[N],
                                const float (&sums)[N]) {
  constexpr bool kFast = sizeof(T) == 2;
  OnlineSum<false> total = weigh<kFast>(tops, sums);
  float scale = 1.0F;
  if (call.sinks != nullptr) {
    const float top = total.top;
    total.merge(to_real(call.sinks[head]), 1.0F);
    scale = exponential<kFast>(top - total.top);
  }
  scale /= total.sum;
#pragma unroll
  for (int i = 0; i < N; ++i) tops[i] *= scale;
}

/// The sums of a block's teams, first of each warp. sync: a barrier of its kThreads threads.
template <int kLanes, int kThreads, class T, class Sync>
__device__ void merge_teams(TeamSum<kVector<T>>& part, unsigned thread,
                            WarpSums<kThreads / 32, kLanes * kVector<T>>& warps, Sync sync,
                            Partial<kLanes * kVector<T>>& to) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  constexpr int kWarps = kThreads / 32;
  constexpr bool kFast = sizeof(T) == 2;
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2) part.template join<kFast>(lanes);
  const unsigned warp = thread / 32;
  const unsigned lane = thread % 32;
  if (lane < kLanes) {
#pragma unroll
    for (int i = 0; i < N; ++i) warps.values[warp][lane * N + i] = part.values[i];
  }
  if (lane == 0) {
    warps.tops[warp] = part.top;
    warps.sums[warp] = part.sum;
  }
  sync();
  static_assert(D <= kThreads);
  if (thread >= D) return;
  float weights[kWarps];
  float sums[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    weights[i] = warps.tops[i];
    sums[i] = warps.sums[i];
  }
  const OnlineSum<false> total = weigh<kFast>(weights, sums);
  float value = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) value += weights[i] * warps.values[i][thread];
  to.values[thread] = value;
  if (thread > 0) return;
  to.top = total.top;
  to.sum = total.sum;
}

/// The result of a split of the keys, by kThreads threads.
template <int kLanes, int kThreads, class T, class Sync>
__device__ void attend_split(const DecodeCall<T>& call, const DecodePlace& place, DecodeKeys own,
                             WarpSums<kThreads / 32, kLanes * kVector<T>>& warps, Sync sync,
                             Partial<kLanes * kVector<T>>& to) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  const CachedCall<T>& cached = call.cached;
  const auto [begin, end] = own;
  float q[N];
  load_turned<N>(call, cached.qkv + place.sample * cached.packed + place.head * D,
                 place.thread % kLanes * N, place.past, q);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] *= cached.scale;
  const Dim at = head_in_cache(cached, place);
  const CachedHead<T> keys = {cached.key_cache + at,     cached.value_cache + at,
                              cached.kv_heads * D,       D,
                              Dim{min(place.past, end)}, cached.softcap};
  TeamSum<N> part = attend_team<kLanes, kThreads>(q, keys, begin, place.thread);
  if (begin <= place.past && place.past < end) add_newest<kLanes>(call, place, q, keys, part);
  merge_teams<kLanes, kThreads, T>(part, place.thread, warps, sync, to);
}

template <class T>
[[nodiscard]] DecodeCall<T> decode_call(Context& ctx, const char* op, const HeadLayout& layout,
                                        const AttentionScores& scores, const RotaryTables& tables,
                                        CView qkv, const KeyValueCache& cache, View out) {
  DecodeCall<T> call = {cached_call<T>(ctx, op, layout, scores, qkv, cache, out),
                        optional_data<float>(tables.cosines), optional_data<float>(tables.sines),
                        tables.cosines ? tables.cosines.shape()[1] : 0};
  call.cached.splits = std::min(call.cached.splits, kMostSplits);
  return call;
}

}  // namespace hyperslab::ops::cuda
