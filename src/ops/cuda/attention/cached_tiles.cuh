// SPDX-License-Identifier: Apache-2.0
// The shared parts of kernels whose tiles of queries are new tokens behind a cache.
#pragma once

#include <bit>

#include "cached.cuh"
#include "tiled_launch.cuh"

namespace hyperslab::ops::cuda {

template <class T>
struct CachedTilesCall {
  int new_tokens;
  int heads;
  int kv_heads;
  int head_width;
  LivePosition past;
  int window;
  float softcap;
  float scale;
  const T* sinks;  ///< (heads), or null: there are none
  const T* qkv;    ///< (B, T_new, packed)
  const T* keys;   ///< (B, T_max, H_kv Dh), or (pages, tokens of a page, H_kv Dh)
  const T* values;
  const std::int32_t* pages;  ///< (B, most), or null: the cache has none
  int most;
  int page_shift;  ///< tokens of a page are 1 << page_shift
  Dim room;        ///< T_max without pages
  T* out;          ///< (B, T_new, H Dh)

  [[nodiscard]] __device__ int packed() const { return (heads + 2 * kv_heads) * head_width; }
  [[nodiscard]] __device__ int cache_row() const { return kv_heads * head_width; }
  [[nodiscard]] __device__ int out_row() const { return heads * head_width; }
  /// The page of a token, or -1 if it has none.
  [[nodiscard]] __device__ int page_of(int sample, int token) const {
    const int index = token >> page_shift;
    return index < most ? pages[static_cast<Dim>(sample) * most + index] : -1;
  }
  [[nodiscard]] __device__ int in_page(int token) const { return token & ((1 << page_shift) - 1); }
  /// The row of the cache at which a token's keys and values begin; -1: none.
  [[nodiscard]] __device__ Dim row_of(int sample, int token) const {
    if (pages == nullptr) return (sample * room + token) * cache_row();
    const int page = page_of(sample, token);
    if (page < 0) return -1;
    return ((static_cast<Dim>(page) << page_shift) + in_page(token)) * cache_row();
  }
  /// The first key that the token at a position sees.
  [[nodiscard]] __device__ int begin_of(int position) const {
    return window > 0 ? max(0, position + 1 - window) : 0;
  }
};

template <class T>
CachedTilesCall<T> cached_tiles_call(const HeadLayout& layout, const AttentionScores& scores,
                                     CView qkv, const KeyValueCache& cache, View out) {
  CachedTilesCall<T> call = {};
  call.new_tokens = static_cast<int>(qkv.shape()[1]);
  call.heads = static_cast<int>(layout.heads);
  call.kv_heads = static_cast<int>(layout.kv_heads);
  call.head_width = static_cast<int>(layout.head_width);
  call.past = live_position(cache.past);
  call.window = static_cast<int>(std::min<Dim>(scores.mask.window, Dim{1} << 30));
  call.softcap = static_cast<float>(scores.softcap);
  call.scale = static_cast<float>(scores.scale_of(layout));
  call.sinks = optional_data<T>(scores.sinks.logits);
  call.qkv = qkv.data<T>();
  call.keys = cache.keys.data<T>();
  call.values = cache.values.data<T>();
  call.pages = optional_data<std::int32_t>(cache.pages);
  call.room = cache.keys.shape()[1];
  if (cache.pages) {
    call.most = static_cast<int>(cache.pages.shape()[1]);
    call.page_shift = std::countr_zero(static_cast<std::uint64_t>(call.room));
  }
  call.out = out.data<T>();
  return call;
}

/// Blocks (tiles of queries, heads, samples).
template <class T>
dim3 cached_tiles_grid(const CachedTilesCall<T>& call, CView qkv) {
  return {static_cast<unsigned>(ceil_divide(call.new_tokens, kTileRows)),
          static_cast<unsigned>(call.heads), static_cast<unsigned>(qkv.shape()[0])};
}

/// The queries of a block, and the tiles of keys that they see, which begin at multiples of 64
/// tokens. A position is a token's place in its sample.
template <class T>
struct CachedTilesRows {
  const CachedTilesCall<T>& call;
  // Late queries see the most keys, so their blocks come first.
  int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  int last_query = min(first_query + kTileRows, call.new_tokens) - 1;
  int head = static_cast<int>(blockIdx.y);
  int kv_column = head / (call.heads / call.kv_heads) * call.head_width;  ///< first in the cache
  int sample = static_cast<int>(blockIdx.z);
  int past = static_cast<int>(call.past.of(sample));
  int end = past + call.new_tokens;  ///< end of the keys in the cache
  int first_key = call.begin_of(past + first_query) / kTileRows * kTileRows;
  int all_see_from = call.begin_of(past + last_query);  ///< the first key of the last query
  int tiles = (past + last_query - first_key) / kTileRows + 1;
  int position[2];  ///< positions of the lane's two rows
  int begin[2];     ///< first keys that they see

  __device__ CachedTilesRows(const CachedTilesCall<T>& of, const Lane& at) : call(of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      position[half] = past + first_query + at.row(half);
      // A row beyond the last query counts as that.
      begin[half] = call.begin_of(min(position[half], past + last_query));
    }
  }
  [[nodiscard]] __device__ int key_of(int tile) const { return first_key + tile * kTileRows; }
  /// Scores of keys that are not seen become -infinity, for a weight of 0.
  __device__ void mask(const Lane& at, int tile, float (&scores)[8][4]) const {
    const int key = key_of(tile);
    if (key + kTileRows - 1 <= past + first_query && key >= all_see_from) return;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of = key + at.column(block, i % 2);
        if (of > position[i / 2] || of < begin[i / 2]) scores[block][i] = -INFINITY;
      }
    }
  }
  /// Divides the lane's rows of weighted values by their sums of weights, the sink's included, and
  /// writes them. off: the amount taken off their exponents, in units of log 2; parts:
  /// the lane's parts of the sums.
  template <int kWidth>
  __device__ void store(const Lane& at, const float (&off)[2], const float (&parts)[2],
                        const float (&values)[kWidth / 8][4]) const {
    const bool has_sink = call.sinks != nullptr;
    const float sink = has_sink ? kLog2E * to_real(call.sinks[head]) : 0.0F;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = parts[half];
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
      if (has_sink) sum += power_of_2(sink - off[half]);
      factor[half] = 1.0F / sum;
    }
    const Dim to =
        (static_cast<Dim>(sample) * call.new_tokens * call.heads + head) * call.head_width;
    store_rows<kWidth>(call.out + to, call.out_row(), first_query, call.new_tokens, call.head_width,
                       at, values, factor);
  }
};

}  // namespace hyperslab::ops::cuda
