// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels_common.cuh"
#include "kernels_softmax.cuh"
#include "library_workspace.hpp"

// Definitions that the kernels of attention to a cache of keys and values share.

namespace hyperslab::ops::cuda {

constexpr int kCachedWarps = 8;  // warps that share the keys of one query
constexpr int kKeysAtOnce = 4;   // keys whose dot products are in flight in a warp
constexpr Dim kLeastKeys = 64;   // keys of a split that is not the last

template <class T>
struct CachedCall {
  Dim heads;
  Dim kv_heads;
  Dim head_width;
  Dim packed;
  Dim new_tokens;
  LivePosition past;
  Dim max_tokens;
  bool causal;
  Dim window;
  float softcap;
  float scale;
  const T* sinks;  ///< (heads), or null: there are none
  const T* qkv;
  T* key_cache;
  T* value_cache;
  T* out;
  Dim splits;      ///< blocks that share the keys of a query
  float* partial;  ///< if there are several: (queries, heads, splits, width + 2)

  /// Keys that a new token sees.
  [[nodiscard]] __device__ Dim end_of(Dim token) const {
    return past.get() + (causal ? token + 1 : new_tokens);
  }
  /// The first of them.
  [[nodiscard]] __device__ Dim begin_of(Dim token) const {
    const Dim end = end_of(token);
    return window > 0 && end > window ? end - window : 0;
  }
  /// The keys of each split but the last, of so many keys in all, so that few keys lie with few
  /// splits.
  [[nodiscard]] __device__ Dim keys_of_split(Dim keys) const {
    const Dim share = (keys + splits - 1) / splits;
    return share < kLeastKeys ? kLeastKeys : share;
  }
};

template <class T>
[[nodiscard]] CachedCall<T> cached_call(Context& ctx, const char* op, const HeadLayout& layout,
                                        const AttentionScores& scores, CView qkv,
                                        const KeyValueCache& cache, View out) {
  const auto [B, new_tokens, packed] = qkv.dims<3>(op);
  const Dim rows = cache.keys.shape()[1];
  return {layout.heads,
          layout.kv_heads,
          layout.head_width,
          packed,
          new_tokens,
          live_position(cache.past),
          rows,
          scores.mask.kind == AttentionMask::Kind::causal,
          scores.mask.window,
          static_cast<float>(scores.softcap),
          static_cast<float>(scores.scale_of(layout)),
          scores.sinks.logits ? scores.sinks.logits.data<T>() : nullptr,
          qkv.data<T>(),
          cache.keys.data<T>(),
          cache.values.data<T>(),
          out.data<T>(),
          attention_cached_splits(layout, B * new_tokens, rows),
          static_cast<float*>(ctx.workspace(op, attention_cached_workspace(layout)))};
}

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

}  // namespace hyperslab::ops::cuda
