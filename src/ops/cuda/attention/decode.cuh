// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cached.cuh"

// One new token of each sample on its cache: rope, the new rows of the cache, and attention, whose
// keys several blocks share. They read the new key and value from qkv, so that none waits for
// another one to write the cache.

namespace hyperslab::ops::cuda {

constexpr int kKeysAtOnce = 4;  // keys whose dot products are in flight in a warp
constexpr Dim kLeastKeys = 64;  // keys of a split that is not the last
constexpr Dim kMostSplits = 8;  // blocks that share the keys of a head: of a cluster on any GPU

/// Keys and values of one head in the cache: rows `row` elements apart, of which those before `end`
/// are seen.
template <class T>
struct CachedHead {
  const T* keys;
  const T* values;
  Dim row;
  Dim width;
  Dim end;
  float softcap;
  [[nodiscard]] __device__ float capped(float score) const {
    return softcap > 0 ? softcap * tanhf(score / softcap) : score;
  }
};

/// The partial result of a team of lanes for one query: each lane holds kWidth columns of the sum
/// of values.
template <int kWidth>
struct TeamSum {
  float top = -INFINITY;
  float sum = 0;
  float values[kWidth] = {};

  /// Adds keys by their scores, -infinity for those that are not there.
  template <int kKeys, class T>
  __device__ void add(const float (&score)[kKeys], const Vec<T, kWidth> (&value)[kKeys]) {
    constexpr bool kFast = sizeof(T) == 2;
    float larger = top;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) larger = fmaxf(larger, score[k]);
    if (larger == -INFINITY) return;
    const float shrink = exponential<kFast>(top - larger);
    top = larger;
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= shrink;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const float weight = exponential<kFast>(score[k] - top);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += weight * to_real(value[k].at[i]);
    }
  }

  /// Adds the sums of the team `lanes` lanes away. Every lane of the warp.
  template <bool kFast>
  __device__ void join(int lanes) {
    const float other_top = __shfl_xor_sync(0xFFFFFFFFU, top, lanes);
    const float larger = fmaxf(top, other_top);
    const float mine = top == -INFINITY ? 0.0F : exponential<kFast>(top - larger);
    const float others = other_top == -INFINITY ? 0.0F : exponential<kFast>(other_top - larger);
    top = larger;
    sum = sum * mine + __shfl_xor_sync(0xFFFFFFFFU, sum, lanes) * others;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = values[i] * mine + __shfl_xor_sync(0xFFFFFFFFU, values[i], lanes) * others;
    }
  }
};

/// Keys [begin, end) of one head of the cache, of which `thread` of kThreads has a part; teams of
/// kLanes lanes take keys in turn, each lane 16 bytes of a row.
template <int kLanes, int kThreads, class T>
__device__ TeamSum<kVector<T>> attend_team(const float (&q)[kVector<T>], const CachedHead<T>& head,
                                           Dim begin, unsigned thread) {
  constexpr int N = kVector<T>;
  constexpr int kTeams = kThreads / kLanes;
  const Dim column = thread % kLanes * N;
  TeamSum<N> part;
  // The bound is the whole block's, so that all lanes take part in the sums.
  for (Dim first = begin; first < head.end; first += kTeams * kKeysAtOnce) {
    Vec<T, N> keys[kKeysAtOnce] = {};
    Vec<T, N> values[kKeysAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kKeysAtOnce; ++k) {
      const Dim j = first + k * kTeams + thread / kLanes;
      if (j >= head.end) continue;
      keys[k] = load_raw<N>(head.keys + j * head.row + column);
      values[k] = load_raw<N>(head.values + j * head.row + column);
    }
    float score[kKeysAtOnce];
#pragma unroll
    for (int k = 0; k < kKeysAtOnce; ++k) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) dot += q[i] * to_real(keys[k].at[i]);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
        dot += __shfl_xor_sync(0xFFFFFFFFU, dot, offset);
      }
      score[k] = first + k * kTeams + thread / kLanes < head.end ? head.capped(dot) : -INFINITY;
    }
    part.add(score, values);
  }
  return part;
}

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
  return place.sample * call.room * call.kv_heads * D + kv_head_of(call, place) * D;
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
  const T* keys = cached.qkv + place.sample * cached.packed() + cached.heads * D;
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
  store<N>(cached.keys + at, key);
  *reinterpret_cast<Vec<T, N>*>(cached.values + at) = value[0];
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
  load_turned<N>(call, cached.qkv + place.sample * cached.packed() + place.head * D,
                 place.thread % kLanes * N, place.past, q);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] *= cached.scale;
  const Dim at = head_in_cache(cached, place);
  const CachedHead<T> keys = {cached.keys + at,          cached.values + at, cached.kv_heads * D, D,
                              Dim{min(place.past, end)}, cached.softcap};
  TeamSum<N> part = attend_team<kLanes, kThreads>(q, keys, begin, place.thread);
  if (begin <= place.past && place.past < end) add_newest<kLanes>(call, place, q, keys, part);
  merge_teams<kLanes, kThreads, T>(part, place.thread, warps, sync, to);
}

template <class T>
[[nodiscard]] DecodeCall<T> decode_call(Context& ctx, const char* op, const HeadLayout& layout,
                                        const AttentionScores& scores, const RotaryTables& tables,
                                        View qkv, const KeyValueCache& cache, View out) {
  DecodeCall<T> call = {cached_call<T>(ctx, op, layout, scores, qkv, cache, out),
                        optional_data<float>(tables.cosines), optional_data<float>(tables.sines),
                        tables.cosines ? tables.cosines.shape()[1] : 0};
  call.cached.splits =
      std::min(attention_decode_splits(layout, qkv.shape()[0], cache.room()), kMostSplits);
  return call;
}

}  // namespace hyperslab::ops::cuda
