// SPDX-License-Identifier: Apache-2.0
#include "tiled.hpp"
#include "tiled_launch.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_backward";
constexpr int kDotWarps = 8;

/// A warp a row of a head: the sum of dout * out.
template <class T>
__global__ void __launch_bounds__(32 * kDotWarps)
    attend_tiles_dots_kernel(TiledCall<T> call, Dim rows) {
  const Dim row = static_cast<Dim>(blockIdx.x) * kDotWarps + threadIdx.y;
  if (row >= rows) return;  // (sample, token, head)
  const T* out = call.out + row * call.head_width;
  const T* dout = call.dout + row * call.head_width;
  float dot = 0;
  for (int chunk = static_cast<int>(threadIdx.x) * 8; chunk < call.head_width; chunk += 256) {
    float left[8];
    float right[8];
    load<8>(out + chunk, left);
    load<8>(dout + chunk, right);
#pragma unroll
    for (int i = 0; i < 8; ++i) dot += left[i] * right[i];
  }
  dot = warp_sum(dot);
  if (threadIdx.x != 0) return;
  const Dim token = row / call.heads;
  const Dim sample = token / call.tokens;
  call.dots[(sample * call.heads + row % call.heads) * call.tokens + token % call.tokens] = dot;
}

/// dq. Block (tile of queries, head, sample).
template <int kWidth, class T>
__global__ void __launch_bounds__(kTileThreads) attend_tiles_queries_kernel(TiledCall<T> call) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Tile = SharedTile<kWidth>;
  const Lane at;
  const Tile queries(memory);
  const Tile gradients(memory + Tile::kBytes);
  const QueryTile<kWidth, T> tile_of(call, memory + 2 * Tile::kBytes, at);
  const int sample = tile_of.sample;
  const int head = tile_of.head;
  const int first_query = tile_of.first_query;
  tile_of.load_queries(queries);
  load_tile(gradients, call.dout + call.out_at(sample, head), call.out_row(), first_query,
            call.tokens, call.head_width);
  float log2_sum_exp[2];
  float dot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Dim index = call.statistic_at(sample, head) + tile_of.known(half);
    log2_sum_exp[half] = kLog2E * call.log_sum_exp[index];
    dot[half] = call.dots[index];
  }
  float dq[kWidth / 8][4] = {};
  tile_of.each_tile([&](int tile, const Tile& keys, const Tile& values) {
    float scores[8][4] = {};
    float gradient[8][4] = {};
    multiply_rows<kWidth, T>(queries, keys, at, scores);
    multiply_rows<kWidth, T>(gradients, values, at, gradient);
    to_scores(call, scores);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool sees = tile_of.sees(i / 2, tile * kTileRows + at.column(block, i % 2));
        to_gradient(call, sees, log2_sum_exp[i / 2], dot[i / 2], scores[block][i],
                    gradient[block][i]);
      }
    }
    add_weighted<kWidth, T>(gradient, keys, at, dq);
  });
  const float factor[2] = {call.scale, call.scale};
  store_rows<kWidth>(call.dqkv + call.query_at(sample, head), call.packed(), first_query,
                     call.tokens, call.head_width, at, dq, factor);
}

/// The statistics of a tile's queries, besides rows of tiles.
struct QueryStatistics {
  float log2_sum_exp[kTileRows];
  float dot[kTileRows];
  int begin[kTileRows];
};

enum class KeyPart : std::uint8_t { both, keys, values };

/// dk, dv, or both. Block (tile of keys, key-value head, sample); the query heads of the group one
/// after another, so that sums have one order.
template <int kWidth, KeyPart kPart, class T>
__global__ void __launch_bounds__(kTileThreads) attend_tiles_keys_kernel(TiledCall<T> call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ QueryStatistics statistics[2];
  using Tile = SharedTile<kWidth>;
  constexpr bool kKeys = kPart != KeyPart::values;
  constexpr bool kValues = kPart != KeyPart::keys;
  const Tile keys(memory);
  const Tile values(memory + Tile::kBytes);
  const auto queries = [&](int stage) { return Tile(memory + (2 + 2 * stage) * Tile::kBytes); };
  const auto gradients = [&](int stage) { return Tile(memory + (3 + 2 * stage) * Tile::kBytes); };
  const auto key_tile = static_cast<int>(blockIdx.x);  // early keys are seen by the most queries
  const int first_key = key_tile * kTileRows;
  const auto kv_head = static_cast<int>(blockIdx.y);
  const auto sample = static_cast<int>(blockIdx.z);
  const int group = call.heads / call.kv_heads;
  const auto thread = static_cast<int>(threadIdx.x);

  // Tiles of queries of which the first sees a key of this tile, or one before it.
  int count = 0;
  for (int tile = key_tile; tile * kTileRows < call.tokens; tile += kTileThreads) {
    const int query = (tile + thread) * kTileRows;
    const bool sees = query < call.tokens && call.begin_of(sample, query) < first_key + kTileRows;
    count += __syncthreads_count(static_cast<int>(sees));
  }
  const auto load = [&](int i, int stage) {
    const int head = kv_head * group + i / count;
    const int first = (key_tile + i % count) * kTileRows;
    load_tile(queries(stage), call.qkv + call.query_at(sample, head), call.packed(), first,
              call.tokens, call.head_width);
    load_tile(gradients(stage), call.dout + call.out_at(sample, head), call.out_row(), first,
              call.tokens, call.head_width);
    if (thread >= kTileRows) return;
    QueryStatistics& of = statistics[stage];
    const int query = first + thread;
    const bool there = query < call.tokens;
    const Dim index = call.statistic_at(sample, head) + query;
    of.log2_sum_exp[thread] = there ? kLog2E * call.log_sum_exp[index] : 0.0F;
    of.dot[thread] = there ? call.dots[index] : 0.0F;
    of.begin[thread] = there ? call.begin_of(sample, query) : call.tokens;  // sees nothing
  };

  const Lane at;
  load_tile(keys, call.qkv + call.key_at(sample, kv_head), call.packed(), first_key, call.tokens,
            call.head_width);
  load_tile(values, call.qkv + call.value_at(sample, kv_head), call.packed(), first_key,
            call.tokens, call.head_width);
  load(0, 0);
  commit_loads();
  float dk[kKeys ? kWidth / 8 : 1][4] = {};
  float dv[kValues ? kWidth / 8 : 1][4] = {};
  for (int i = 0; i < group * count; ++i) {
    const int stage = i % 2;
    if (i + 1 < group * count) load(i + 1, 1 - stage);
    commit_loads();
    wait_for_loads<1>();
    __syncthreads();
    float scores[8][4] = {};  // rows are keys, columns queries
    float gradient[8][4] = {};
    multiply_rows<kWidth, T>(keys, queries(stage), at, scores);
    if constexpr (kKeys) multiply_rows<kWidth, T>(values, gradients(stage), at, gradient);
    to_scores(call, scores);
    const int first_query = (key_tile + i % count) * kTileRows;
    const QueryStatistics& of = statistics[stage];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = at.column(block, j % 2);
        const int key = first_key + at.row(j / 2);
        const bool sees = key <= first_query + column && key >= of.begin[column];
        to_gradient(call, sees, of.log2_sum_exp[column], of.dot[column], scores[block][j],
                    gradient[block][j]);
      }
    }
    if constexpr (kValues) add_weighted<kWidth, T>(scores, gradients(stage), at, dv);
    if constexpr (kKeys) add_weighted<kWidth, T>(gradient, queries(stage), at, dk);
    __syncthreads();
  }
  if constexpr (kKeys) {
    const float factor[2] = {call.scale, call.scale};
    store_rows<kWidth>(call.dqkv + call.key_at(sample, kv_head), call.packed(), first_key,
                       call.tokens, call.head_width, at, dk, factor);
  }
  if constexpr (kValues) {
    const float factor[2] = {1, 1};
    store_rows<kWidth>(call.dqkv + call.value_at(sample, kv_head), call.packed(), first_key,
                       call.tokens, call.head_width, at, dv, factor);
  }
}

template <int kWidth, class T>
void launch_backward(Context& ctx, const TiledCall<T>& call, Dim B) {
  const Dim rows = B * call.tokens * call.heads;
  attend_tiles_dots_kernel<T><<<static_cast<unsigned>(ceil_divide(rows, kDotWarps)),
                                dim3(32, kDotWarps), 0, ctx.stream().cuda()>>>(call, rows);
  check_launch(kName);
  constexpr int kBytes = 6 * SharedTile<kWidth>::kBytes;
  const dim3 of_keys = tile_grid(call, call.kv_heads, B);
  if constexpr (kWidth <= 128) {
    launch_tiles<kBytes, attend_tiles_keys_kernel<kWidth, KeyPart::both, T>>(ctx, kName, of_keys,
                                                                             call);
  } else {  // both sums do not fit a thread's registers
    launch_tiles<kBytes, attend_tiles_keys_kernel<kWidth, KeyPart::keys, T>>(ctx, kName, of_keys,
                                                                             call);
    launch_tiles<kBytes, attend_tiles_keys_kernel<kWidth, KeyPart::values, T>>(ctx, kName, of_keys,
                                                                               call);
  }
  launch_tiles<kBytes, attend_tiles_queries_kernel<kWidth, T>>(
      ctx, kName, tile_grid(call, call.heads, B), call);
}

}  // namespace

void tiled_attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView dout, const AttentionSaved& saved, View dqkv) {
  const auto& [qkv, out, log_sum_exp] = saved;
  const Dim B = qkv.shape()[0];
  const auto dots_bytes = static_cast<std::size_t>(log_sum_exp.numel()) * sizeof(float);
  auto* dots = static_cast<float*>(ctx.workspace(kName, dots_bytes));
  with_tiles(
      qkv.dtype(), layout, kName,
      [&, qkv = qkv, out = out, log_sum_exp = log_sum_exp]<int kWidth, class T>(Width<kWidth>, T) {
        TiledCall<T> call = tiled_call<T>(layout, scores, qkv);
        call.out = const_cast<T*>(out.template data<T>());  // only read
        call.log_sum_exp = const_cast<float*>(log_sum_exp.template data<float>());
        call.dout = dout.data<T>();
        call.dots = dots;
        call.dqkv = dqkv.data<T>();
        launch_backward<kWidth>(ctx, call, B);
      });
}

}  // namespace hyperslab::ops::cuda
