// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "cached_table.hpp"
#include "cuda/tools/common.cuh"
#include "cuda/tools/library_workspace.hpp"
#include "cuda/tools/softmax.cuh"

// Definitions that the kernels of attention on a cache share.

namespace hyperslab::ops::cuda {

constexpr const char* kCachedName = "attention_cached_forward";
constexpr int kCachedWarps = 8;
constexpr int kCachedThreads = 32 * kCachedWarps;

template <class T>
struct CachedCall {
  Dim heads;
  Dim kv_heads;
  Dim head_width;
  Dim new_tokens;
  LivePosition past;
  Dim window;
  float softcap;
  float scale;
  const T* sinks;  ///< (heads), or null: there are none
  T* qkv;
  T* keys;  ///< (pages, tokens of a page, kv_heads head_width); without pages one a sample
  T* values;
  const std::int32_t* pages;  ///< (samples, most), or null: the cache has none
  Dim most;                   ///< pages of a sample at most
  int page_shift;             ///< tokens of a page are 1 << page_shift
  Dim room;                   ///< tokens that a sample has room for
  T* out;
  Dim splits;      ///< blocks that share the keys of a query or a tile
  float* partial;  ///< if there are several: (samples, tokens, heads, splits, width + 2)

  [[nodiscard]] __device__ Dim group() const { return heads / kv_heads; }
  [[nodiscard]] __device__ Dim packed() const { return (heads + 2 * kv_heads) * head_width; }
  /// Keys that a new token sees: [begin_of, end_of).
  [[nodiscard]] __device__ Dim end_of(Dim sample, Dim token) const {
    return past.of(sample) + token + 1;
  }
  [[nodiscard]] __device__ Dim begin_of(Dim end) const {
    return window > 0 && end > window ? end - window : 0;
  }
  /// The first element of a token's row in keys and values; -1: its page is not there.
  [[nodiscard]] __device__ Dim row_of(Dim sample, Dim token) const {
    if (pages == nullptr) return (sample * room + token) * kv_heads * head_width;
    const Dim page = pages[sample * most + (token >> page_shift)];
    if (page < 0) return -1;
    const Dim inside = token & ((Dim{1} << page_shift) - 1);
    return ((page << page_shift) + inside) * kv_heads * head_width;
  }
  [[nodiscard]] __device__ float score(float product) const {
    return softcap > 0 ? softcap * tanhf(product / softcap) : product;
  }
  [[nodiscard]] __device__ float* partial_of(Dim query, Dim head, Dim split) const {
    return partial + ((query * heads + head) * splits + split) * (head_width + 2);
  }
};

template <class T>
[[nodiscard]] CachedCall<T> cached_call(Context& ctx, const char* op, const HeadLayout& layout,
                                        const AttentionScores& scores, View qkv,
                                        const KeyValueCache& cache, View out) {
  const bool has_pages = static_cast<bool>(cache.pages);
  return {layout.heads,
          layout.kv_heads,
          layout.head_width,
          qkv.shape()[1],
          live_position(cache.past),
          scores.mask.window,
          static_cast<float>(scores.softcap),
          static_cast<float>(scores.scale_of(layout)),
          optional_data<T>(scores.sinks.logits),
          qkv.data<T>(),
          cache.keys.data<T>(),
          cache.values.data<T>(),
          optional_data<std::int32_t>(cache.pages),
          has_pages ? cache.pages.shape()[1] : 1,
          has_pages ? std::countr_zero(static_cast<std::uint64_t>(cache.page_tokens())) : 0,
          cache.room(),
          out.data<T>(),
          1,
          static_cast<float*>(ctx.workspace(op, attention_cached_workspace(layout)))};
}

/// Turns queries in place, and writes turned keys and values to the cache.
void place_new_tokens(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                      const RotaryTables& tables, View qkv, const KeyValueCache& cache, View out);

[[nodiscard]] inline dim3 blocks_of(Dim x, Dim y, Dim z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

}  // namespace hyperslab::ops::cuda
