// SPDX-License-Identifier: Apache-2.0
#include "cached_tiles.cuh"
#include "tiles_forward.cuh"

namespace hyperslab::ops::cuda {
namespace {

/// Starts to copy 64 tokens of a head in the cache, from `first` on; those from `end` on and those
/// without a page become zero.
template <int kWidth, class T>
__device__ void load_cached_tile(const SharedTile<kWidth>& to, const CachedTilesCall<T>& call,
                                 const CachedTilesRows<T>& rows, const T* cache, int first) {
  constexpr int kChunks = kWidth / 8;
  constexpr int kRowsAtOnce = kTileThreads / kChunks;
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool has_column = chunk * 8 < call.head_width;
#pragma unroll
  for (int i = 0; i < kTileRows; i += kRowsAtOnce) {
    const int token = first + row + i;
    const Dim from = has_column && token < rows.end ? call.row_of(rows.sample, token) : -1;
    load_chunk(to.at(row + i, chunk), cache + (from < 0 ? 0 : from + rows.kv_column + chunk * 8),
               from >= 0);
  }
}

/// Block (tile of queries, head, sample); tiles of keys and values on their way through two stages
/// of shared memory.
template <int kWidth, class T>
__global__ void __launch_bounds__(kTileThreads)
    attend_tiles_cached_kernel(CachedTilesCall<T> call) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = SharedTile<kWidth>;
  const Lane at;
  const CachedTilesRows<T> rows(call, at);
  const Tile queries(memory);
  const auto keys = [&](int i) { return Tile(memory + (1 + i % 2 * 2) * Tile::kBytes); };
  const auto values = [&](int i) { return Tile(memory + (2 + i % 2 * 2) * Tile::kBytes); };
  const auto load = [&](int i) {
    if (i < rows.tiles) {
      load_cached_tile<kWidth>(keys(i), call, rows, call.keys, rows.key_of(i));
      load_cached_tile<kWidth>(values(i), call, rows, call.values, rows.key_of(i));
    }
    commit_loads();
  };
  load_tile(queries,
            call.qkv + static_cast<Dim>(rows.sample) * call.new_tokens * call.packed() +
                rows.head * call.head_width,
            call.packed(), rows.first_query, call.new_tokens, call.head_width);
  load(0);
  TileSums sums;
  float out[kWidth / 8][4] = {};
  for (int i = 0; i < rows.tiles; ++i) {
    load(i + 1);
    wait_for_loads<1>();
    __syncthreads();
    float scores[8][4] = {};
    multiply_rows<kWidth, T>(queries, keys(i), at, scores);
    to_scores(call, scores);
    rows.mask(at, i, scores);
    add_values<kWidth, T>(scores, values(i), at, sums, out);
    __syncthreads();  // before the stage is loaded again
  }
  rows.template store<kWidth>(at, sums.top, sums.sum, out);
}

}  // namespace

void attention_cached_by_tiles(Context& ctx, const HeadLayout& layout,
                               const AttentionScores& scores, const RotaryTables& tables, View qkv,
                               const KeyValueCache& cache, View out) {
  place_new_tokens(ctx, layout, scores, tables, qkv, cache, out);
  with_tiles(qkv.dtype(), layout, kCachedName, [&]<int kWidth, class T>(Width<kWidth>, T) {
    const auto call = cached_tiles_call<T>(layout, scores, qkv, cache, out);
    launch_tiles<5 * SharedTile<kWidth>::kBytes, attend_tiles_cached_kernel<kWidth, T>>(
        ctx, kCachedName, cached_tiles_grid(call, qkv), call);
  });
}

}  // namespace hyperslab::ops::cuda
