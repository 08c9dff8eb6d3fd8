// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/reduce.hpp"
#include "warpgroup.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_backward";

/// The sum of dout * out of each of a tile's rows: in shared memory for this block, in call.dots
/// for the kernel of keys. Rows beyond the sample have none.
template <int kWidth, class T>
__device__ void sum_dots(const TiledCall<T>& call, const QueryRows<T>& rows, float* dots) {
  constexpr int kLanes = kWidth / 8;  // lanes that share a row
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
  __threadfence();  // the kernel of keys reads them while this one runs
}

/// The shared memory of a block of queries, and how many blocks a multiprocessor has.
template <int kWidth>
struct QuerySharedLayout {
  static constexpr int kBlocks = kWidth == 64 ? 3 : 2;
  static constexpr int kSlots = 2;
  static constexpr int kTile = warpgroup::Tile<kWidth>::kBytes;
  static constexpr int kBarriersAt = (2 + 2 * kSlots) * kTile;
  static constexpr int kDotsAt = kBarriersAt + kBarrierBytes;
  static constexpr int kBytes = kDotsAt + kTileRows * static_cast<int>(sizeof(float));
};

/// The lower of two lanes `apart` adds the first kHalf values of both, the upper the kHalf after
/// them. Returns the index of the first value that this lane has added.
template <int kHalf, int kValues>
__device__ int add_half(float (&values)[kValues], int lane, int apart) {
  const bool upper = (lane & apart) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float low = values[i];
    const float high = values[kHalf + i];
    values[i] = (upper ? high : low) + __shfl_xor_sync(0xFFFFFFFFU, upper ? low : high, apart);
  }
  return upper ? kHalf : 0;
}

/// Writes `factor` times the sums of a tile's columns over the rows that the sample has, from token
/// `first` on, for columns of dqkv from `column` on. scratch: (kTileWarps, kWidth) of the block,
/// which no thread reads or writes any more.
template <int kWidth, class T>
__device__ void store_column_sums(const WarpgroupCall<T>& call, int sample, int first, int column,
                                  const Lane& at, const float (&values)[kWidth / 8][4],
                                  float factor, float* scratch) {
  constexpr int kValues = kWidth / 4;  // a lane's columns: two of each block of 8
  const bool there[2] = {first + at.row(0) < call.tokens, first + at.row(1) < call.tokens};
  float sums[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const float(&block)[4] = values[i / 2];
    sums[i] = (there[0] ? block[i % 2] : 0.0F) + (there[1] ? block[2 + i % 2] : 0.0F);
  }
  int begin = add_half<kValues / 2>(sums, at.lane, 16);
  begin += add_half<kValues / 4>(sums, at.lane, 8);
  begin += add_half<kValues / 8>(sums, at.lane, 4);
#pragma unroll
  for (int i = 0; i < kValues / 8; ++i) {
    const int of_tile = at.column((begin + i) / 2, i % 2);
    scratch[static_cast<int>(threadIdx.x) / 32 * kWidth + of_tile] = sums[i];
  }
  __syncthreads();
  const int of_tile = static_cast<int>(threadIdx.x);
  if (of_tile >= kWidth) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kTileWarps; ++warp) sum += scratch[warp * kWidth + of_tile];
  const Dim tile = static_cast<Dim>(sample) * gridDim.x + first / kTileRows;
  call.column_sums[tile * call.packed() + column + of_tile] = factor * sum;
}

/// dq, and the sums of dout * out. Block (tile of queries, head, sample). The kernel of keys may
/// start as soon as all blocks have these sums, which is all that it reads of this one.
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, QuerySharedLayout<kWidth>::kBlocks)
    attend_warpgroup_queries_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = QuerySharedLayout<kWidth>;
  auto* barriers = reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt);
  auto* dots = reinterpret_cast<float*>(memory + Shared::kDotsAt);
  // Queries and their gradients.
  const TileRing<kWidth, 2> row_tiles = {memory, barriers};
  const TileRing<kWidth, Shared::kSlots> keys = {memory + row_tiles.kBytes, barriers + 2};
  const TileRing<kWidth, Shared::kSlots> values = {keys.memory + keys.kBytes,
                                                   keys.full + Shared::kSlots};
  wait_for_earlier();
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
  overlap();

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
  if (call.column_sums == nullptr) return;
  store_column_sums<kWidth>(call, rows.sample, rows.first_query, rows.query_column, at, dq,
                            call.scale, reinterpret_cast<float*>(memory));
}

/// The statistics of a tile's queries, besides rows of tiles.
struct QueryStatistics {
  float log2_sum_exp[kTileRows];
  float dot[kTileRows];
  int begin[kTileRows];
};
constexpr int kStatistics = 2;  // tiles of which they are kept

/// The shared memory of a block of keys, and how many blocks a multiprocessor has.
template <int kWidth>
struct KeySharedLayout {
  static constexpr int kBlocks = kWidth == 64 ? 3 : 2;
  static constexpr int kSlots = 2;
  static constexpr int kTile = warpgroup::Tile<kWidth>::kBytes;
  static constexpr int kBarriersAt = (2 + 2 * kSlots) * kTile;
  static constexpr int kStatisticsAt = kBarriersAt + kBarrierBytes;
  static constexpr int kBytes =
      kStatisticsAt + kStatistics * static_cast<int>(sizeof(QueryStatistics));
};

/// The keys of a block, by grid (tiles, key-value heads, samples), and the steps that bring
/// queries: a tile of queries of a head of the group. Tiles beyond a head's last one are of the
/// next.
template <int kWidth, class T>
struct KeySteps {
  using Shared = KeySharedLayout<kWidth>;
  const WarpgroupCall<T>& call;
  TileRing<kWidth, Shared::kSlots> queries;
  TileRing<kWidth, Shared::kSlots> gradients;
  QueryStatistics* statistics;  ///< kStatistics
  int thread = static_cast<int>(threadIdx.x);
  int key_tile = static_cast<int>(blockIdx.x);  // early keys are seen by the most queries
  int first_key = key_tile * kTileRows;
  int kv_head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z);
  int group = call.heads / call.kv_heads;
  int count = 0;  ///< tiles of queries of which the first sees a key of this tile, or one before it
  int steps = 0;

  /// All threads: a barrier of the block.
  __device__ void find() {
    for (int tile = key_tile; tile * kTileRows < call.tokens; tile += kTileThreads) {
      const int query = (tile + thread) * kTileRows;
      const bool sees = query < call.tokens && call.begin_of(sample, query) < first_key + kTileRows;
      count += __syncthreads_count(static_cast<int>(sees));
    }
    count = warpgroup::uniform(count);
    steps = group * count;
  }
  __device__ void load_queries(int step, int head, int tile) const {
    if (step >= steps) return;
    for (; tile >= count; tile -= count) ++head;
    const int column = (kv_head * group + head) * call.head_width;
    const int first = (key_tile + tile) * kTileRows;
    queries.load(step, call.qkv_boxes, column, first, sample);
    gradients.load(step, call.dout_boxes, column, first, sample);
  }
  __device__ void load_statistics(int step, int head, int tile) const {
    if (step >= steps || thread >= kTileRows) return;
    for (; tile >= count; tile -= count) ++head;
    QueryStatistics& to = statistics[step % kStatistics];
    const int query = (key_tile + tile) * kTileRows + thread;
    const bool there = query < call.tokens;
    const Dim index = call.statistic_at(sample, kv_head * group + head) + query;
    to.log2_sum_exp[thread] = there ? kLog2E * __ldcg(&call.log_sum_exp[index]) : 0.0F;
    to.dot[thread] = there ? __ldcg(&call.dots[index]) : 0.0F;  // as the kernel before wrote it
    to.begin[thread] = there ? call.begin_of(sample, query) : call.tokens;  // sees nothing
  }
  /// All warps are done with the queries of a step.
  __device__ void release(int step, int head, int tile) const {
    __syncthreads();
    if (thread == 0) load_queries(step + Shared::kSlots, head, tile + Shared::kSlots);
  }
  /// Scores of keys that queries do not see become -infinity, for a weight of 0.
  __device__ void mask(const Lane& at, const QueryStatistics& row, int tile,
                       float (&scores)[8][4]) const {
    const int first_query = (key_tile + tile) * kTileRows;
    if (tile != 0 && row.begin[kTileRows - 1] <= first_key) return;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = at.column(block, i % 2);
        const int key = first_key + at.row(i / 2);
        const bool sees = key <= first_query + column && key >= row.begin[column];
        if (!sees) scores[block][i] = -INFINITY;
      }
    }
  }
};

/// Scores, of which columns are queries, become weights.
template <bool kCapped>
__device__ void to_weights(const ScoreRule<kCapped>& rule, const Lane& at,
                           const QueryStatistics& row, float (&scores)[8][4]) {
#pragma unroll
  for (int block = 0; block < 8; ++block) {
    const float2 sum = *reinterpret_cast<const float2*>(&row.log2_sum_exp[at.column(block, 0)]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[block][i] = rule.weight(i % 2 == 0 ? sum.x : sum.y, scores[block][i]);
    }
  }
}

/// Gradients of probabilities become gradients of scores.
template <bool kCapped>
__device__ void to_score_gradients(const ScoreRule<kCapped>& rule, const Lane& at,
                                   const QueryStatistics& row, const float (&weights)[8][4],
                                   float (&gradient)[8][4]) {
#pragma unroll
  for (int block = 0; block < 8; ++block) {
    const float2 sum = *reinterpret_cast<const float2*>(&row.log2_sum_exp[at.column(block, 0)]);
    const float2 dot = *reinterpret_cast<const float2*>(&row.dot[at.column(block, 0)]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      gradient[block][i] = rule.gradient(weights[block][i], i % 2 == 0 ? sum.x : sum.y,
                                         gradient[block][i], i % 2 == 0 ? dot.x : dot.y);
    }
  }
}

/// dk and dv. Block (tile of keys, key-value head, sample); the query heads of the group one after
/// another, so that sums have one order. Products have keys as rows and queries as columns. Runs
/// beside the kernel of queries, which has waited for all that was before it, and waits for its end
/// alone, with which it shares nothing but the sums that were there when this kernel started.
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, KeySharedLayout<kWidth>::kBlocks)
    attend_warpgroup_keys_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = KeySharedLayout<kWidth>;
  auto* barriers = reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt);
  // Keys and their values.
  const TileRing<kWidth, 2> row_tiles = {memory, barriers};
  unsigned char* after = memory + row_tiles.kBytes;
  KeySteps<kWidth, T> of = {call,
                            {after, barriers + 2},
                            {after + Shared::kSlots * Shared::kTile, barriers + 2 + Shared::kSlots},
                            reinterpret_cast<QueryStatistics*>(memory + Shared::kStatisticsAt)};
  overlap();
  of.find();
  if (of.thread == 0) {
    row_tiles.init();
    of.queries.init();
    of.gradients.init();
    tma::publish_init();
    const int column = (call.heads + of.kv_head) * call.head_width;
    row_tiles.load(0, call.qkv_boxes, column, of.first_key, of.sample);
    row_tiles.load(1, call.qkv_boxes, column + call.kv_heads * call.head_width, of.first_key,
                   of.sample);
    for (int i = 0; i < Shared::kSlots; ++i) of.load_queries(i, 0, i);
  }
  for (int i = 0; i < kStatistics - 1; ++i) of.load_statistics(i, 0, i);
  __syncthreads();

  const Lane at;
  const ScoreRule<kCapped> rule(call);
  float dk[kWidth / 8][4] = {};
  float dv[kWidth / 8][4] = {};
  float scores[8][4];
  float gradient[8][4];
  row_tiles.wait(0);
  const auto keys = row_tiles.tile(0);
  row_tiles.wait(1);
  const auto values = row_tiles.tile(1);
  int step = 0;
  for (int head = 0; head < of.group; ++head) {
    for (int tile = 0; tile < of.count; ++tile, ++step) {
      const auto queries = of.queries.tile(step);
      const auto gradients = of.gradients.tile(step);
      of.queries.wait(step);
      warpgroup::fence();
      warpgroup::multiply_rows<T, kWidth>(keys, queries, scores);
      warpgroup::commit();
      of.gradients.wait(step);
      warpgroup::fence();
      warpgroup::multiply_rows<T, kWidth>(values, gradients, gradient);
      warpgroup::commit();
      warpgroup::wait<1>();
      warpgroup::pin(scores);
      const QueryStatistics& row = of.statistics[step % kStatistics];
      rule.to_scores(scores);
      of.mask(at, row, tile, scores);
      to_weights(rule, at, row, scores);
      warpgroup::wait<0>();
      warpgroup::pin(gradient);
      to_score_gradients(rule, at, row, scores, gradient);
      warpgroup::Rows weights;
      warpgroup::Rows score_gradients;
      to_rows<T>(scores, weights);
      to_rows<T>(gradient, score_gradients);
      warpgroup::fence();
      warpgroup::add_product<T, kWidth>(weights, gradients, dv);
      warpgroup::add_product<T, kWidth>(score_gradients, queries, dk);
      warpgroup::commit();
      of.load_statistics(step + kStatistics - 1, head, tile + kStatistics - 1);
      warpgroup::wait<0>();
      warpgroup::pin(dv);
      warpgroup::pin(dk);
      of.release(step, head, tile);
    }
  }
  const float of_keys[2] = {call.scale, call.scale};
  store_rows<kWidth>(call.dqkv + call.key_at(of.sample, of.kv_head), call.packed(), of.first_key,
                     call.tokens, call.head_width, at, dk, of_keys);
  const float of_values[2] = {1, 1};
  store_rows<kWidth>(call.dqkv + call.value_at(of.sample, of.kv_head), call.packed(), of.first_key,
                     call.tokens, call.head_width, at, dv, of_values);
  if (call.column_sums != nullptr) {
    const int column = (call.heads + of.kv_head) * call.head_width;
    auto* scratch = reinterpret_cast<float*>(memory);
    store_column_sums<kWidth>(call, of.sample, of.first_key, column, at, dk, call.scale, scratch);
    store_column_sums<kWidth>(call, of.sample, of.first_key,
                              column + call.kv_heads * call.head_width, at, dv, 1.0F,
                              scratch + kTileWarps * kWidth);
  }
  wait_for_earlier();
}

}  // namespace

void warpgroup_attention_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionSaved& saved,
                                  const AttentionGradients& gradients) {
  const auto& [qkv, out, log_sum_exp] = saved;
  const auto& [dqkv, dbias, accumulate_bias] = gradients;
  const Dim B = qkv.shape()[0];
  const Dim rows = leading(qkv.shape());
  static_assert(kTileRows == kAttentionTileRows);
  const Dim T = qkv.shape()[1];
  auto* column_sums =
      dbias ? static_cast<float*>(ctx.partials(kName, attention_bias_partials(layout, B, T)))
            : nullptr;
  // Fits the memory that attention_backward_workspace() plans for cuDNN's sums of dq.
  auto* dots = static_cast<float*>(ctx.workspace(kName, log_sum_exp.bytes()));
  with_warpgroups(qkv.dtype(), layout, scores.softcap, kName,
                  [&, qkv = qkv, out = out, log_sum_exp = log_sum_exp,
                   dqkv = dqkv]<int kWidth, bool kCapped, class T>(Width<kWidth>,
                                                                   std::bool_constant<kCapped>, T) {
                    WarpgroupCall<T> call = {tiled_call<T>(layout, scores, qkv), {}, {}};
                    call.qkv_boxes = boxes_of<T>(kName, qkv, kWidth);
                    call.dout_boxes = boxes_of<T>(kName, dout, kWidth);
                    call.out = const_cast<T*>(out.template data<T>());  // only read
                    call.log_sum_exp = const_cast<float*>(log_sum_exp.template data<float>());
                    call.dout = dout.data<T>();
                    call.dots = dots;
                    call.column_sums = column_sums;
                    call.dqkv = dqkv.data<T>();
                    launch_waiting_tiles<QuerySharedLayout<kWidth>::kBytes,
                                         attend_warpgroup_queries_kernel<kWidth, kCapped, T>>(
                        ctx, kName, rows, tile_grid(call, call.heads, B), call);
                    launch_waiting_tiles<KeySharedLayout<kWidth>::kBytes,
                                         attend_warpgroup_keys_kernel<kWidth, kCapped, T>>(
                        ctx, kName, rows, tile_grid(call, call.kv_heads, B), call);
                  });
  if (!dbias) return;
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = column_sums,
                .parts = static_cast<int>(B * ceil_divide(T, kTileRows)),
                .stride = layout.packed_width(),
                .C = layout.packed_width(),
                .accumulate = accumulate_bias == Accumulate::yes,
                .out = {dbias}});
}

}  // namespace hyperslab::ops::cuda
