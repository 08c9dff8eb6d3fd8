// SPDX-License-Identifier: Apache-2.0
#include "attention_warpgroup.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_backward";

/// The sum of dout * out of each of a tile's rows: in shared memory for this block, in call.dots
/// for the kernel of keys. Rows beyond the sample have none.
template <int kWidth, class T>
__device__ void sum_dots(const TiledCall<T>& call, const QueryRows<T>& rows, float* dots) {
  constexpr int kLanes = kWidth / 8;  // of a row
  constexpr int kRowsAtOnce = kTileThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Dim head = call.out_at(rows.sample, rows.head) + lane * 8;
#pragma unroll
  for (int first = 0; first < kTileRows; first += kRowsAtOnce) {
    const int row = first + static_cast<int>(threadIdx.x) / kLanes;
    const int query = min(rows.first_query + row, rows.last_query);
    const Dim from = head + static_cast<Dim>(query) * call.out_row();
    float left[8];
    float right[8];
    load<8>(call.out + from, left);
    load<8>(call.dout + from, right);
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) dot += left[i] * right[i];
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      dot += __shfl_xor_sync(0xFFFFFFFFU, dot, apart);
    }
    if (lane != 0) continue;
    dots[row] = dot;
    if (rows.first_query + row < call.tokens) {
      call.dots[call.statistic_at(rows.sample, rows.head) + query] = dot;
    }
  }
}

/// The shared memory of a block of queries, and how many blocks a multiprocessor has.
template <int kWidth>
struct QueryCut {
  static constexpr int kBlocks = kWidth == 64 ? 3 : 2;
  static constexpr int kSlots = 2;
  static constexpr int kTile = warpgroup::Tile<kWidth>::kBytes;
  static constexpr int kBarriersAt = (2 + 2 * kSlots) * kTile;
  static constexpr int kDotsAt = kBarriersAt + 64;
  static constexpr int kBytes = kDotsAt + kTileRows * static_cast<int>(sizeof(float));
};

/// dq, and the sums of dout * out. Block (tile of queries, head, sample).
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, QueryCut<kWidth>::kBlocks)
    attend_warpgroup_queries_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = QueryCut<kWidth>;
  auto* barriers = reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt);
  auto* dots = reinterpret_cast<float*>(memory + Shared::kDotsAt);
  // Queries and their gradients.
  const TileRing<kWidth, 2> row_tiles = {memory, barriers};
  const TileRing<kWidth, Shared::kSlots> keys = {memory + row_tiles.kBytes, barriers + 2};
  const TileRing<kWidth, Shared::kSlots> values = {keys.memory + keys.kBytes,
                                                   keys.full + Shared::kSlots};
  const Lane at;
  const QueryRows<T> rows(call, at);
  const auto load_tiles = [&](int i) {
    if (i >= rows.tiles) return;
    keys.load(i, call.qkv_boxes, rows.key_column, rows.key_of(i), rows.sample);
    values.load(i, call.qkv_boxes, rows.value_column, rows.key_of(i), rows.sample);
  };
  if (threadIdx.x == 0) {
    row_tiles.init();
    keys.init();
    values.init();
    tma::publish_init();
    row_tiles.load(0, call.qkv_boxes, rows.query_column, rows.first_query, rows.sample);
    row_tiles.load(1, call.dout_boxes, rows.query_column, rows.first_query, rows.sample);
    for (int i = 0; i < Shared::kSlots; ++i) load_tiles(i);
  }
  sum_dots<kWidth>(call, rows, dots);
  __syncthreads();

  float log2_sum_exp[2];
  float dot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    log2_sum_exp[half] =
        kLog2E * call.log_sum_exp[call.statistic_at(rows.sample, rows.head) + rows.known(half)];
    dot[half] = dots[at.row(half)];
  }
  const ScoreRule<kCapped> rule(call);
  float dq[kWidth / 8][4] = {};
  float scores[8][4];
  float gradient[8][4];
  warpgroup::Rows score_gradients;
  row_tiles.wait(0);
  const auto queries = row_tiles.tile(0);
  row_tiles.wait(1);
  const auto gradients = row_tiles.tile(1);
  const auto start_scores = [&](int i) {
    keys.wait(i);
    values.wait(i);
    warpgroup::fence();
    warpgroup::multiply_rows<T, kWidth>(queries, keys.tile(i), scores);
    warpgroup::multiply_rows<T, kWidth>(gradients, values.tile(i), gradient);
    warpgroup::commit();
  };
  const auto start_dq = [&](int i) {
    warpgroup::fence();
    warpgroup::add_product<T, kWidth>(score_gradients, keys.tile(i), dq);
    warpgroup::commit();
  };
  const auto to_gradient = [&](int i) {
    warpgroup::pin(scores);
    warpgroup::pin(gradient);
    rule.to_scores(scores);
    rows.mask(at, i, scores);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = log2_sum_exp[j / 2];
        gradient[block][j] =
            rule.gradient(rule.weight(sum, scores[block][j]), sum, gradient[block][j], dot[j / 2]);
      }
    }
  };
  for (int i = 0; i < rows.tiles; ++i) {
    start_scores(i);
    warpgroup::wait<0>();
    to_gradient(i);
    to_rows<T>(gradient, score_gradients);
    start_dq(i);
    warpgroup::wait<0>();
    warpgroup::pin(dq);
    __syncthreads();  // all warps are done with keys and values i
    if (threadIdx.x == 0) load_tiles(i + Shared::kSlots);
  }
  const float factor[2] = {call.scale, call.scale};
  store_rows<kWidth>(call.dqkv + call.query_at(rows.sample, rows.head), call.packed(),
                     rows.first_query, call.tokens, call.head_width, at, dq, factor);
}

/// What a tile's queries have besides rows of tiles.
struct QueryStatistics {
  float log2_sum_exp[kTileRows];
  float dot[kTileRows];
  int begin[kTileRows];
};
constexpr int kStatistics = 2;  // tiles of which they are kept

/// The shared memory of a block of keys, and how many blocks a multiprocessor has.
template <int kWidth>
struct KeyCut {
  static constexpr int kBlocks = kWidth == 64 ? 3 : 2;
  static constexpr int kSlots = 2;
  static constexpr int kTile = warpgroup::Tile<kWidth>::kBytes;
  static constexpr int kBarriersAt = (2 + 2 * kSlots) * kTile;
  static constexpr int kStatisticsAt = kBarriersAt + 64;
  static constexpr int kBytes =
      kStatisticsAt + kStatistics * static_cast<int>(sizeof(QueryStatistics));
};

/// dk and dv. Block (tile of keys, key-value head, sample); the query heads of the group one after
/// another, so that sums have one order. Products have keys as rows and queries as columns.
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, KeyCut<kWidth>::kBlocks)
    attend_warpgroup_keys_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = KeyCut<kWidth>;
  auto* barriers = reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt);
  auto* statistics = reinterpret_cast<QueryStatistics*>(memory + Shared::kStatisticsAt);
  // Keys and their values.
  const TileRing<kWidth, 2> row_tiles = {memory, barriers};
  const TileRing<kWidth, Shared::kSlots> queries = {memory + row_tiles.kBytes, barriers + 2};
  const TileRing<kWidth, Shared::kSlots> gradients = {queries.memory + queries.kBytes,
                                                      queries.full + Shared::kSlots};
  const auto thread = static_cast<int>(threadIdx.x);
  const auto key_tile = static_cast<int>(blockIdx.x);  // early keys are seen by the most queries
  const int first_key = key_tile * kTileRows;
  const auto kv_head = static_cast<int>(blockIdx.y);
  const auto sample = static_cast<int>(blockIdx.z);
  const int group = call.heads / call.kv_heads;

  // Tiles of queries of which the first sees a key of this tile, or one before it.
  int count = 0;
  for (int tile = key_tile; tile * kTileRows < call.tokens; tile += kTileThreads) {
    const int query = (tile + thread) * kTileRows;
    const bool sees = query < call.tokens && call.begin_of(sample, query) < first_key + kTileRows;
    count += __syncthreads_count(static_cast<int>(sees));
  }
  count = warpgroup::uniform(count);
  const int steps = group * count;
  // A step is a tile of queries of a head of the group; `tile` may be past its last, in the next.
  const auto load_queries = [&](int step, int head, int tile) {
    if (step >= steps) return;
    for (; tile >= count; tile -= count) ++head;
    const int column = (kv_head * group + head) * call.head_width;
    const int first = (key_tile + tile) * kTileRows;
    queries.load(step, call.qkv_boxes, column, first, sample);
    gradients.load(step, call.dout_boxes, column, first, sample);
  };
  const auto load_statistics = [&](int step, int head, int tile) {
    if (step >= steps || thread >= kTileRows) return;
    for (; tile >= count; tile -= count) ++head;
    QueryStatistics& to = statistics[step % kStatistics];
    const int query = (key_tile + tile) * kTileRows + thread;
    const bool there = query < call.tokens;
    const Dim index = call.statistic_at(sample, kv_head * group + head) + query;
    to.log2_sum_exp[thread] = there ? kLog2E * call.log_sum_exp[index] : 0.0F;
    to.dot[thread] = there ? call.dots[index] : 0.0F;
    to.begin[thread] = there ? call.begin_of(sample, query) : call.tokens;  // sees nothing
  };
  // All warps are done with the queries of a step.
  const auto release = [&](int step, int head, int tile) {
    __syncthreads();
    if (thread == 0) load_queries(step + Shared::kSlots, head, tile + Shared::kSlots);
  };
  if (thread == 0) {
    row_tiles.init();
    queries.init();
    gradients.init();
    tma::publish_init();
    const int column = (call.heads + kv_head) * call.head_width;
    row_tiles.load(0, call.qkv_boxes, column, first_key, sample);
    row_tiles.load(1, call.qkv_boxes, column + call.kv_heads * call.head_width, first_key, sample);
    for (int i = 0; i < Shared::kSlots; ++i) load_queries(i, 0, i);
  }
  for (int i = 0; i < kStatistics - 1; ++i) load_statistics(i, 0, i);
  __syncthreads();

  const Lane at;
  const ScoreRule<kCapped> rule(call);
  float dk[kWidth / 8][4] = {};
  float dv[kWidth / 8][4] = {};
  float scores[8][4];
  float gradient[8][4];
  warpgroup::Rows weights;
  warpgroup::Rows score_gradients;
  row_tiles.wait(0);
  const auto keys = row_tiles.tile(0);
  row_tiles.wait(1);
  const auto values = row_tiles.tile(1);
  const auto start_sums = [&](int step) {
    warpgroup::fence();
    warpgroup::add_product<T, kWidth>(weights, gradients.tile(step), dv);
    warpgroup::add_product<T, kWidth>(score_gradients, queries.tile(step), dk);
    warpgroup::commit();
  };
  const auto start_scores = [&](int step) {
    queries.wait(step);
    warpgroup::fence();
    warpgroup::multiply_rows<T, kWidth>(keys, queries.tile(step), scores);
    warpgroup::commit();
    gradients.wait(step);
    warpgroup::fence();
    warpgroup::multiply_rows<T, kWidth>(values, gradients.tile(step), gradient);
    warpgroup::commit();
  };
  const auto to_weights = [&](const QueryStatistics& row, int tile) {
    warpgroup::pin(scores);
    rule.to_scores(scores);
    const int first_query = (key_tile + tile) * kTileRows;
    if (tile == 0 || row.begin[kTileRows - 1] > first_key) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = at.column(block, j % 2);
          const int key = first_key + at.row(j / 2);
          const bool sees = key <= first_query + column && key >= row.begin[column];
          if (!sees) scores[block][j] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 sum = *reinterpret_cast<const float2*>(&row.log2_sum_exp[at.column(block, 0)]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[block][j] = rule.weight(j % 2 == 0 ? sum.x : sum.y, scores[block][j]);
      }
    }
  };
  const auto to_gradients = [&](const QueryStatistics& row) {
    warpgroup::pin(gradient);
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const float2 sum = *reinterpret_cast<const float2*>(&row.log2_sum_exp[at.column(block, 0)]);
      const float2 dot = *reinterpret_cast<const float2*>(&row.dot[at.column(block, 0)]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        gradient[block][j] = rule.gradient(scores[block][j], j % 2 == 0 ? sum.x : sum.y,
                                           gradient[block][j], j % 2 == 0 ? dot.x : dot.y);
      }
    }
  };
  int step = 0;
  for (int head = 0; head < group; ++head) {
    for (int tile = 0; tile < count; ++tile, ++step) {
      start_scores(step);
      warpgroup::wait<1>();
      const QueryStatistics& row = statistics[step % kStatistics];
      to_weights(row, tile);
      warpgroup::wait<0>();
      to_gradients(row);
      to_rows<T>(scores, weights);
      to_rows<T>(gradient, score_gradients);
      start_sums(step);
      load_statistics(step + kStatistics - 1, head, tile + kStatistics - 1);
      warpgroup::wait<0>();
      warpgroup::pin(dv);
      warpgroup::pin(dk);
      release(step, head, tile);
    }
  }
  const float of_keys[2] = {call.scale, call.scale};
  store_rows<kWidth>(call.dqkv + call.key_at(sample, kv_head), call.packed(), first_key,
                     call.tokens, call.head_width, at, dk, of_keys);
  const float of_values[2] = {1, 1};
  store_rows<kWidth>(call.dqkv + call.value_at(sample, kv_head), call.packed(), first_key,
                     call.tokens, call.head_width, at, dv, of_values);
}

}  // namespace

void warpgroup_attention_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionSaved& saved, View dqkv) {
  const auto& [qkv, out, log_sum_exp] = saved;
  const Dim B = qkv.shape()[0];
  const auto dots_bytes = static_cast<std::size_t>(log_sum_exp.numel()) * sizeof(float);
  auto* dots = static_cast<float*>(ctx.workspace(kName, dots_bytes));
  with_warpgroups(
      qkv.dtype(), layout, scores.softcap, kName,
      [&, qkv = qkv, out = out, log_sum_exp = log_sum_exp]<int kWidth, bool kCapped, class T>(
          Width<kWidth>, std::bool_constant<kCapped>, T) {
        WarpgroupCall<T> call = {tiled_call<T>(layout, scores, qkv), {}, {}};
        call.qkv_boxes = boxes_of<T>(kName, qkv, kWidth);
        call.dout_boxes = boxes_of<T>(kName, dout, kWidth);
        call.out = const_cast<T*>(out.template data<T>());  // only read
        call.log_sum_exp = const_cast<float*>(log_sum_exp.template data<float>());
        call.dout = dout.data<T>();
        call.dots = dots;
        call.dqkv = dqkv.data<T>();
        launch_tiles<QueryCut<kWidth>::kBytes, attend_warpgroup_queries_kernel<kWidth, kCapped, T>>(
            ctx, kName, tile_grid(call, call.heads, B), call);
        launch_tiles<KeyCut<kWidth>::kBytes, attend_warpgroup_keys_kernel<kWidth, kCapped, T>>(
            ctx, kName, tile_grid(call, call.kv_heads, B), call);
      });
}

}  // namespace hyperslab::ops::cuda
