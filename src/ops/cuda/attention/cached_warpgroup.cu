// SPDX-License-Identifier: Apache-2.0
#include "cached_tiles.cuh"
#include "warpgroup_rows.cuh"

namespace hyperslab::ops::cuda {
namespace {

/// Tiles of keys and values come as boxes of a head's columns of 64 tokens, or of as many as a page
/// has if these are fewer, a swizzled part of their columns each.
template <class T>
struct CachedBoxes : CachedTilesCall<T> {
  CUtensorMap query_boxes;
  CUtensorMap key_boxes;
  CUtensorMap value_boxes;
  int box_tokens;
};

template <class T>
struct WarpgroupRows : CachedTilesRows<T> {
  const CachedBoxes<T>& boxes;

  __device__ WarpgroupRows(const CachedBoxes<T>& of, const Lane& at)
      : CachedTilesRows<T>(of, at), boxes(of) {
    this->tiles = warpgroup::uniform(this->tiles);
  }
  template <class Ring>
  __device__ void load_queries(const Ring& ring) const {
    ring.load(0, boxes.query_boxes, this->head * boxes.head_width, this->first_query, this->sample);
  }
  template <class Ring>
  __device__ void load_keys(const Ring& ring, int i) const {
    load(ring, boxes.key_boxes, i);
  }
  template <class Ring>
  __device__ void load_values(const Ring& ring, int i) const {
    load(ring, boxes.value_boxes, i);
  }
  /// Rows of the cache behind the newest token may hold anything, and weights of zero would make
  /// NaNs of it.
  template <class Ring>
  __device__ void mend_last(const Ring& ring) const {
    const int last = this->tiles - 1;
    const int there = this->end - this->key_of(last);
    if (there >= kTileRows) return;
    ring.wait(last);
    constexpr int kChunks = warpgroup::kSwizzled * 2 / 16;  // chunks in a row of a part
    constexpr int kParts = Ring::Tile::kBytes / Ring::Tile::kPartBytes;
    auto* chunks = reinterpret_cast<int4*>(ring.memory_of(last));
    for (int i = there * kChunks + static_cast<int>(threadIdx.x); i < kTileRows * kChunks;
         i += kTileThreads) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        chunks[part * kTileRows * kChunks + i] = make_int4(0, 0, 0, 0);
      }
    }
    warpgroup::publish_writes();
    __syncthreads();
  }

 private:
  /// One thread. Keys without a page lie beyond the array, and come as zeros.
  template <class Ring>
  __device__ void load(const Ring& ring, const CUtensorMap& from, int i) const {
    const int key = this->key_of(i);
    if (boxes.pages == nullptr) return ring.load(i, from, this->kv_column, key, this->sample);
    if (boxes.box_tokens == kTileRows) {
      return ring.load(i, from, this->kv_column, boxes.in_page(key),
                       boxes.page_of(this->sample, key));
    }
    std::uint64_t* barrier = ring.barrier(i);
    tma::arrive_for(barrier, Ring::Tile::kBytes);
    constexpr int kParts = Ring::Tile::kBytes / Ring::Tile::kPartBytes;
    for (int row = 0; row < kTileRows; row += boxes.box_tokens) {
      const int page = boxes.page_of(this->sample, key + row);
      for (int part = 0; part < kParts; ++part) {
        const std::uint32_t to =
            ring.tile(i).base + static_cast<std::uint32_t>(part * Ring::Tile::kPartBytes +
                                                           row * warpgroup::kSwizzled * 2);
        tma::copy(to, from, {0, 0, this->kv_column / warpgroup::kSwizzled + part, page}, barrier);
      }
    }
  }
};

/// Block (tile of queries, head, sample).
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, SharedLayout<kWidth>::kBlocks)
    attend_warpgroup_cached_kernel(const __grid_constant__ CachedBoxes<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Lane at;
  const WarpgroupRows<T> rows(call, at);
  RowSums sums;
  float out[kWidth / 8][4] = {};
  attend_rows<T, kWidth>(memory, at, rows, ScoreRule<kCapped>(call), sums, out);
  rows.template store<kWidth>(at, sums.off, sums.sum, out);
}

}  // namespace

void attention_cached_by_warpgroups(Context& ctx, const HeadLayout& layout,
                                    const AttentionScores& scores, const RotaryTables& tables,
                                    View qkv, const KeyValueCache& cache, View out) {
  place_new_tokens(ctx, layout, scores, tables, qkv, cache, out);
  with_warpgroups(
      qkv.dtype(), layout, scores.softcap, kCachedName,
      [&]<int kWidth, bool kCapped, class T>(Width<kWidth>, std::bool_constant<kCapped>, T) {
        CachedBoxes<T> call = {
            cached_tiles_call<T>(layout, scores, qkv, cache, out), {}, {}, {}, 0};
        const Dim box_tokens = cache.pages ? std::min<Dim>(kTileRows, call.room) : kTileRows;
        call.box_tokens = static_cast<int>(box_tokens);
        call.query_boxes = boxes_of<T>(kCachedName, qkv, kWidth);
        call.key_boxes = boxes_of<T>(kCachedName, cache.keys, kWidth, box_tokens);
        call.value_boxes = boxes_of<T>(kCachedName, cache.values, kWidth, box_tokens);
        launch_tiles<SharedLayout<kWidth>::kBytes,
                     attend_warpgroup_cached_kernel<kWidth, kCapped, T>>(
            ctx, kCachedName, cached_tiles_grid(call, qkv), call);
      });
}

}  // namespace hyperslab::ops::cuda
