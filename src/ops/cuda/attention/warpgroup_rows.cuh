// SPDX-License-Identifier: Apache-2.0
// The forward pass of a warpgroup with its tile of queries, whose keys and values may come from
// anywhere.
#pragma once

#include "warpgroup.cuh"

namespace hyperslab::ops::cuda {

/// Scores in units of log 2 may exceed the number that is taken off their exponents by this much
/// before it grows and all that was summed shrinks: weights are at most 2^8, which f16 holds.
constexpr float kSlack = 8;

/// For each of the lane's two rows: the number taken off exponents, in units of log 2, and the
/// lane's part of the sum of weights.
struct RowSums {
  float off[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};

  /// Scores, times `unit` in units of log 2, become weights 2^(score - off); `shrink` is the factor
  /// for earlier weights.
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

/// The tiles of a block of attend_rows in shared memory.
template <int kWidth>
struct RowTiles {
  using Shared = SharedLayout<kWidth>;
  TileRing<kWidth, 1> queries;
  TileRing<kWidth, Shared::kSlots> keys;
  TileRing<kWidth, Shared::kSlots> values;

  __device__ explicit RowTiles(unsigned char* memory)
      : queries{memory, reinterpret_cast<std::uint64_t*>(memory + Shared::kBarriersAt)},
        keys{memory + Shared::kTile, queries.full + 1},
        values{keys.memory + keys.kBytes, keys.full + Shared::kSlots} {}
};

/// Adds the values of all keys that the block's queries see to `out`. A weighted sum of values and
/// the next products of keys run beside the softmax.
///
/// `rows` are a block's queries: `tiles` of keys that they see; load_queries(ring), load_keys(ring,
/// i) and load_values(ring, i), called by one thread for a tile i of these; mask(at, i, scores);
/// and mend_last(ring), called by all threads once the last tile of values has come.
template <class T, int kWidth, bool kCapped, class Rows>
__device__ __forceinline__ void attend_rows(unsigned char* memory, const Lane& at, const Rows& rows,
                                            const ScoreRule<kCapped>& rule, RowSums& sums,
                                            float (&out)[kWidth / 8][4]) {
  constexpr int kSlots = SharedLayout<kWidth>::kSlots;
  const RowTiles<kWidth> tiles(memory);
  const auto load_keys = [&](int i) {
    if (i < rows.tiles) rows.load_keys(tiles.keys, i);
  };
  const auto load_values = [&](int i) {
    if (i < rows.tiles) rows.load_values(tiles.values, i);
  };
  if (threadIdx.x == 0) {
    tiles.queries.init();
    tiles.keys.init();
    tiles.values.init();
    tma::publish_init();
    rows.load_queries(tiles.queries);
    for (int i = 0; i < kSlots; ++i) load_keys(i);
    for (int i = 0; i < kSlots; ++i) load_values(i);
  }
  __syncthreads();

  float scores[8][4];
  float shrink[2];
  warpgroup::Rows weights;
  tiles.queries.wait(0);
  const auto queries = tiles.queries.tile(0);
  const auto start_scores = [&](int i) {
    tiles.keys.wait(i);
    warpgroup::fence();
    warpgroup::multiply_rows<T, kWidth>(queries, tiles.keys.tile(i), scores);
    warpgroup::commit();
  };
  const auto start_values = [&](int i) {
    tiles.values.wait(i);
    warpgroup::fence();
    warpgroup::add_product<T, kWidth>(weights, tiles.values.tile(i), out);
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
  rows.mend_last(tiles.values);
  start_values(rows.tiles - 1);
  warpgroup::wait<0>();
  warpgroup::pin(out);
}

}  // namespace hyperslab::ops::cuda
