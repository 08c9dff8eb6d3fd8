// SPDX-License-Identifier: Apache-2.0
#include "attention_tiled.hpp"
#include "attention_tiled_launch.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_forward";

/// The largest score of each of the lane's two rows so far, in units of log 2, and its part of the
/// sum of 2^(score - largest).
struct RowSums {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

/// Scores become weights 2^(score - largest); `shrink` is what earlier weights are multiplied with.
__device__ void to_weights(float (&scores)[8][4], RowSums& rows, float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      top = fmaxf(top, fmaxf(scores[block][2 * half], scores[block][2 * half + 1]) * kLog2E);
    }
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 2));
    const float from = top == -INFINITY ? 0.0F : top;
    shrink[half] = power_of_2(rows.top[half] - from);
    rows.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[block][i] = power_of_2(scores[block][i] * kLog2E - from);
        sum += scores[block][i];
      }
    }
    rows.sum[half] = rows.sum[half] * shrink[half] + sum;
  }
}

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
  RowSums rows;
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
    float shrink[2];
    to_weights(scores, rows, shrink);
#pragma unroll
    for (int block = 0; block < kWidth / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[block][i] *= shrink[i / 2];
    }
    add_weighted<kWidth, T>(scores, values, at, out);
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
