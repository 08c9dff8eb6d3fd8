// SPDX-License-Identifier: Apache-2.0
#include "attention_warpgroup.cuh"
#include "handles.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_forward";

/// Scores in units of log 2 may exceed the number that is taken off their exponents by this much
/// before it grows and all that was summed shrinks: weights are at most 2^8, which f16 holds.
constexpr float kSlack = 8;

/// Of each of the lane's two rows: what is taken off exponents, in units of log 2, and the lane's
/// part of the sum of weights.
struct RowSums {
  float off[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};

  /// Scores, times `unit` in units of log 2, become weights 2^(score - off); `shrink` is what
  /// earlier weights are multiplied with.
  __device__ void to_weights(float unit, float (&scores)[8][4], float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int block = 0; block < 8; ++block) {
        largest = fmaxf(largest, fmaxf(scores[block][2 * half], scores[block][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
      largest = unit * fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
      shrink[half] = 1;
      if (largest > off[half] + kSlack) {
        shrink[half] = power_of_2(off[half] - largest);
        off[half] = largest;
      }
      const float from = off[half] == -INFINITY ? 0.0F : off[half];
      float part = 0;
#pragma unroll
      for (int block = 0; block < 8; ++block) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[block][i] = power_of_2(fmaf(scores[block][i], unit, -from));
          part += scores[block][i];
        }
      }
      sum[half] = sum[half] * shrink[half] + part;
    }
  }
};

/// The shared memory of a block, and how many blocks a multiprocessor has.
template <int kWidth>
struct SharedLayout {
  static constexpr int kBlocks = kWidth == 64 ? 4 : 2;
  static constexpr int kSlots = 2;
  static constexpr int kTile = warpgroup::Tile<kWidth>::kBytes;
  static constexpr int kBarriersAt = (1 + 2 * kSlots) * kTile;
  static constexpr int kBytes = kBarriersAt + kBarrierBytes;
};

/// Block (tile of queries, head, sample). A weighted sum of values and the next products of keys
/// run beside the softmax.
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, SharedLayout<kWidth>::kBlocks)
    attend_warpgroup_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Shared = SharedLayout<kWidth>;
  constexpr int kSlots = Shared::kSlots;
  auto* barriers = reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt);
  const TileRing<kWidth, 1> query_tile = {memory, barriers};
  const TileRing<kWidth, kSlots> keys = {memory + Shared::kTile, barriers + 1};
  const TileRing<kWidth, kSlots> values = {keys.memory + keys.kBytes, keys.full + kSlots};
  const Lane at;
  const QueryRows<T> rows(call, at);
  const auto load_keys = [&](int i) {
    if (i >= rows.tiles) return;
    keys.load(i, call.qkv_boxes, rows.key_column, rows.key_of(i), rows.sample);
  };
  const auto load_values = [&](int i) {
    if (i >= rows.tiles) return;
    values.load(i, call.qkv_boxes, rows.value_column, rows.key_of(i), rows.sample);
  };
  if (threadIdx.x == 0) {
    query_tile.init();
    keys.init();
    values.init();
    tma::publish_init();
    query_tile.load(0, call.qkv_boxes, rows.query_column, rows.first_query, rows.sample);
    for (int i = 0; i < kSlots; ++i) load_keys(i);
    for (int i = 0; i < kSlots; ++i) load_values(i);
  }
  __syncthreads();

  const ScoreRule<kCapped> rule(call);
  RowSums sums;
  float out[kWidth / 8][4] = {};
  float scores[8][4];
  float shrink[2];
  warpgroup::Rows weights;
  query_tile.wait(0);
  const auto queries = query_tile.tile(0);
  const auto start_scores = [&](int i) {
    keys.wait(i);
    warpgroup::fence();
    warpgroup::multiply_rows<T, kWidth>(queries, keys.tile(i), scores);
    warpgroup::commit();
  };
  const auto start_values = [&](int i) {
    values.wait(i);
    warpgroup::fence();
    warpgroup::add_product<T, kWidth>(weights, values.tile(i), out);
    warpgroup::commit();
  };
  const auto to_weights = [&](int i) {
    warpgroup::pin(scores);
    rule.to_scores(scores);
    rows.mask(at, i, scores);
    sums.to_weights(rule.unit, scores, shrink);
  };
  start_scores(0);
  warpgroup::wait<0>();
  to_weights(0);
  to_rows<T>(scores, weights);
  for (int i = 1; i < rows.tiles; ++i) {
    start_scores(i);
    start_values(i - 1);
    __syncthreads();  // all warps are done with keys i - 1 and values i - 2
    if (threadIdx.x == 0) {
      load_keys(i - 1 + kSlots);
      if (i > 1) load_values(i - 2 + kSlots);
    }
    warpgroup::wait<1>();
    to_weights(i);
    warpgroup::wait<0>();
    warpgroup::pin(out);
    if (__any_sync(0xFFFFFFFFU, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int block = 0; block < kWidth / 8; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[block][j] *= shrink[j / 2];
      }
    }
    to_rows<T>(scores, weights);
  }
  start_values(rows.tiles - 1);
  warpgroup::wait<0>();
  warpgroup::pin(out);
  store_out<kWidth>(call, rows.sample, rows.head, rows.first_query, at, sums.off, sums.sum, out);
}

}  // namespace

bool suits_warpgroups(const HeadLayout& layout) {
#if defined(HYPERSLAB_HAS_WARPGROUPS)
  return (layout.head_width == 64 || layout.head_width == 128) && compute_capability() == 90;
#else
  (void)layout;
  return false;
#endif
}

void warpgroup_attention_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, View out,
                                 View log_sum_exp) {
  with_warpgroups(
      qkv.dtype(), layout, scores.softcap, kName,
      [&]<int kWidth, bool kCapped, class T>(Width<kWidth>, std::bool_constant<kCapped>, T) {
        WarpgroupCall<T> call = {tiled_call<T>(layout, scores, qkv), {}, {}};
        call.qkv_boxes = boxes_of<T>(kName, qkv, kWidth);
        call.out = out.data<T>();
        call.log_sum_exp = log_sum_exp.data<float>();
        launch_tiles<SharedLayout<kWidth>::kBytes, attend_warpgroup_kernel<kWidth, kCapped, T>>(
            ctx, kName, tile_grid(call, call.heads, qkv.shape()[0]), call);
      });
}

}  // namespace hyperslab::ops::cuda
