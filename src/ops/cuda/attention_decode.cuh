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

/// What a thread works on: a split of the keys of a head of a sample, with the block's others.
struct DecodePlace {
  Dim sample;
  Dim head;
  Dim split;
  unsigned thread;
};

/// A block's attention to its keys: the sum of the values, not yet divided, with what they weigh.
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
                           const float (&q)[kVector<T>], Dim past, const CachedHead<T>& head,
                           TeamSum<kVector<T>>& part) {
  constexpr int N = kVector<T>;
  const CachedCall<T>& cached = call.cached;
  const Dim D = cached.head_width;
  const Dim sharing = cached.heads / cached.kv_heads;
  const Dim kv_head = place.head / sharing;
  const T* keys = cached.qkv + place.sample * cached.packed + cached.heads * D;
  const Dim column = place.thread % kLanes * N;
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
  const float score[1] = {place.thread < kLanes ? head.capped(dot) : -INFINITY};
  part.add(score, value);
  if (place.thread >= kLanes || place.head % sharing != 0) return;
  const Dim row = (place.sample * cached.max_tokens + past) * head.row + kv_head * D + column;
  store<N>(cached.key_cache + row, key);
  *reinterpret_cast<Vec<T, N>*>(cached.value_cache + row) = value[0];
}

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

/// The same, and of a sink: weights[i] times the sum i of values, over the total, is the output.
template <int N, class T>
__device__ void weigh_with_sink(const CachedCall<T>& call, Dim head, float (&tops)[N],
                                const float (&sums)[N]) {
  OnlineSum<false> total = weigh(tops, sums);
  float scale = 1.0F;
  if (call.sinks != nullptr) {
    const float top = total.top;
    total.merge(to_real(call.sinks[head]), 1.0F);
    scale = expf(top - total.top);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) tops[i] *= scale / total.sum;
}

/// The sums of a block's teams, first of each warp. sync: a barrier of its kThreads threads.
template <int kLanes, int kThreads, class T, class Sync>
__device__ void merge_teams(TeamSum<kVector<T>>& part, unsigned thread,
                            WarpSums<kThreads / 32, kLanes * kVector<T>>& warps, Sync sync,
                            Partial<kLanes * kVector<T>>& to) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  constexpr int kWarps = kThreads / 32;
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2) part.join(lanes);
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
  float weights[kWarps];
  float sums[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    weights[i] = warps.tops[i];
    sums[i] = warps.sums[i];
  }
  const OnlineSum<false> total = weigh(weights, sums);
  for (unsigned c = thread; c < D; c += kThreads) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) value += weights[i] * warps.values[i][c];
    to.values[c] = value;
  }
  if (thread == 0) {
    to.top = total.top;
    to.sum = total.sum;
  }
}

/// What a split of the keys has to say, by kThreads threads.
template <int kLanes, int kThreads, class T, class Sync>
__device__ void attend_split(const DecodeCall<T>& call, const DecodePlace& place,
                             WarpSums<kThreads / 32, kLanes * kVector<T>>& warps, Sync sync,
                             Partial<kLanes * kVector<T>>& to) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  const CachedCall<T>& cached = call.cached;
  const Dim past = cached.past.get();
  const Dim first = cached.begin_of(0);
  const Dim share = cached.keys_of_split(past + 1 - first);
  const Dim begin = first + place.split * share;
  float q[N];
  load_turned<N>(call, cached.qkv + place.sample * cached.packed + place.head * D,
                 place.thread % kLanes * N, past, q);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] *= cached.scale;
  const Dim row = cached.kv_heads * D;
  const Dim at =
      place.sample * cached.max_tokens * row + place.head / (cached.heads / cached.kv_heads) * D;
  const CachedHead<T> keys = {cached.key_cache + at,    cached.value_cache + at, row, D,
                              min(past, begin + share), cached.softcap};
  TeamSum<N> part = attend_team<kLanes, kThreads>(q, keys, begin, place.thread);
  if (begin <= past && past < begin + share) add_newest<kLanes>(call, place, q, past, keys, part);
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
