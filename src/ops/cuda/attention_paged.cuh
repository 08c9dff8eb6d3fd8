// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels_common.cuh"
#include "kernels_softmax.cuh"
#include "library_workspace.hpp"

// Definitions that the kernels of attention to a cache in pages share.

namespace hyperslab::ops::cuda {

constexpr const char* kPagedName = "rope_attention_paged_forward";
constexpr int kPagedWarps = 8;
constexpr int kPagedThreads = 32 * kPagedWarps;

template <class T>
struct PagedCall {
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
  T* keys;  ///< (pages, tokens of a page, kv_heads head_width)
  T* values;
  const std::int32_t* pages;  ///< (samples, most)
  Dim most;
  int page_shift;  ///< tokens of a page are 1 << page_shift
  T* out;
  Dim splits;      ///< blocks that share the keys of a tile
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
  [[nodiscard]] __device__ std::int32_t page_of(Dim sample, Dim token) const {
    return pages[sample * most + (token >> page_shift)];
  }
  /// The first element of a token's row in keys and values, if it has a page.
  [[nodiscard]] __device__ Dim row_of(Dim sample, Dim token) const {
    const Dim page = page_of(sample, token);
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

[[nodiscard]] inline dim3 blocks_of(Dim x, Dim y, Dim z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

/// Attends for heads of 64, 128, 256 or 512 bytes, in tiles of pairs of a new token and a query
/// head; false: of another width, or operands are not aligned.
template <class T>
[[nodiscard]] bool attend_in_tiles(Context& ctx, const PagedCall<T>& call, Dim B);

}  // namespace hyperslab::ops::cuda
