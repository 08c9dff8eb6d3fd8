// SPDX-License-Identifier: Apache-2.0
#include "tiled.hpp"
#include "tiled_launch.cuh"
#include "tiles_forward.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_forward";

/// Block (tile of queries, head, sample).
template <int kWidth, class T>
__global__ void __launch_bounds__(kTileThreads) attend_tiles_kernel(TiledCall<T> call) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = SharedTile<kWidth>;
  const Lane at;
  const Tile queries(memory);
  const QueryTile<kWidth, T> tile_of(call, memory + Tile::kBytes, at);
  const int all_see_from = call.begin_of(tile_of.sample, tile_of.last_query);
  tile_of.load_queries(queries);
  TileSums rows;
  float out[kWidth / 8][4] = {};
  tile_of.each_tile([&](int tile, const Tile& keys, const Tile& values) {
    float scores[8][4] = {};
    multiply_rows<kWidth, T>(queries, keys, at, scores);
    to_scores(call, scores);
    const int first_key = tile * kTileRows;
    if (tile == tile_of.last_tile || first_key < all_see_from) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!tile_of.sees(i / 2, first_key + at.column(block, i % 2))) {
            scores[block][i] = -INFINITY;
          }
        }
      }
    }
    add_values<kWidth, T>(scores, values, at, rows, out);
  });
  store_out<kWidth>(call, tile_of.sample, tile_of.head, tile_of.first_query, at, rows.top, rows.sum,
                    out);
}

}  // namespace

void tiled_attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView qkv, View out, View log_sum_exp) {
  with_tiles(qkv.dtype(), layout, kName, [&]<int kWidth, class T>(Width<kWidth>, T) {
    TiledCall<T> call = tiled_call<T>(layout, scores, qkv);
    call.out = out.data<T>();
    call.log_sum_exp = log_sum_exp.data<float>();
    launch_tiles<5 * SharedTile<kWidth>::kBytes, attend_tiles_kernel<kWidth, T>>(
        ctx, kName, tile_grid(call, call.heads, qkv.shape()[0]), call);
  });
}

}  // namespace hyperslab::ops::cuda
