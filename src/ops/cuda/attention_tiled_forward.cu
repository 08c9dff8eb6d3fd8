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
  const Tile queries(memory);
  const auto keys = [&](int stage) { return Tile(memory + (1 + 2 * stage) * Tile::kBytes); };
  const auto values = [&](int stage) { return Tile(memory + (2 + 2 * stage) * Tile::kBytes); };
  // Late queries see the most keys, so their blocks come first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  const auto head = static_cast<int>(blockIdx.y);
  const auto sample = static_cast<int>(blockIdx.z);
  const int kv_head = head / (call.heads / call.kv_heads);
  const T* key_head = call.qkv + call.key_at(sample, kv_head);
  const T* value_head = call.qkv + call.value_at(sample, kv_head);
  const auto load = [&](int tile, int stage) {
    const int first = tile * kTileRows;
    load_tile(keys(stage), key_head, call.packed(), first, call.tokens, call.head_width);
    load_tile(values(stage), value_head, call.packed(), first, call.tokens, call.head_width);
  };

  const Lane at;
  const int last_query = min(first_query + kTileRows, call.tokens) - 1;
  const int first_tile = call.begin_of(sample, first_query) / kTileRows;
  const int last_tile = first_query / kTileRows;
  const int all_see_from = call.begin_of(sample, last_query);
  load_tile(queries, call.qkv + call.query_at(sample, head), call.packed(), first_query,
            call.tokens, call.head_width);
  load(first_tile, 0);
  commit_loads();
  int begin[2];
  int query[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    query[half] = first_query + at.row(half);
    begin[half] = call.begin_of(sample, min(query[half], last_query));
  }
  RowSums rows;
  float out[kWidth / 8][4] = {};
  for (int tile = first_tile; tile <= last_tile; ++tile) {
    const int stage = (tile - first_tile) % 2;
    if (tile < last_tile) load(tile + 1, 1 - stage);
    commit_loads();
    wait_for_loads<1>();
    __syncthreads();
    float scores[8][4] = {};
    multiply_rows<kWidth, T>(queries, keys(stage), at, scores);
    to_scores(call, scores);
    const int first_key = tile * kTileRows;
    if (tile == last_tile || first_key < all_see_from) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + at.column(block, i % 2);
          if (key > query[i / 2] || key < begin[i / 2]) scores[block][i] = -INFINITY;
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
    add_weighted<kWidth, T>(scores, values(stage), at, out);
    __syncthreads();  // before the stage is loaded again
  }

  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    factor[half] = 1.0F / sum;
    if (at.lane % 4 == 0 && query[half] < call.tokens) {
      call.log_sum_exp[call.statistic_at(sample, head) + query[half]] =
          rows.top[half] * kLn2 + logf(sum);
    }
  }
  store_rows<kWidth>(call.out + call.out_at(sample, head), call.out_row(), first_query, call.tokens,
                     call.head_width, at, out, factor);
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
