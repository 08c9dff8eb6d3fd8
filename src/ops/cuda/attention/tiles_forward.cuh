// SPDX-License-Identifier: Apache-2.0
// The shared parts of kernels of tiled attention's forward pass.
#pragma once

#include "tiles.cuh"

namespace hyperslab::ops::cuda {

/// The largest score of each of the lane's two rows so far, in units of log 2, and its part of the
/// sum of 2^(score - largest).
struct TileSums {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

/// Scores become weights 2^(score - largest); `shrink` is the factor for earlier weights.
__device__ inline void to_weights(float (&scores)[8][4], TileSums& rows, float (&shrink)[2]) {
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

/// Adds the values of a tile of keys by their scores to the lane's rows.
template <int kWidth, class T>
__device__ void add_values(float (&scores)[8][4], const SharedTile<kWidth>& values, const Lane& at,
                           TileSums& rows, float (&out)[kWidth / 8][4]) {
  float shrink[2];
  to_weights(scores, rows, shrink);
#pragma unroll
  for (int block = 0; block < kWidth / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[block][i] *= shrink[i / 2];
  }
  add_weighted<kWidth, T>(scores, values, at, out);
}

}  // namespace hyperslab::ops::cuda
