// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/tools/words.cuh"

namespace hyperslab::ops::cuda {

template <class T>
struct NormBackwardCall {
  Dim rows;
  Dim C;
  const T* dy;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  bool accumulate;
  /// Per block C sums each of dweight, dbias and, with NormSums::weights_and_stream, of dx as it
  /// arrives and as it leaves; null: frozen.
  float* partial;
};

/// Which sums over rows are kept.
enum class NormSums : std::uint8_t { none, weights, weights_and_stream };
constexpr int count_of(NormSums sums) { return sums == NormSums::weights_and_stream ? 4 : 2; }

/// The part of a row that a thread holds: K vectors of N elements, blockDim.x vectors apart.
template <int N, int K, class T>
struct NormRow {
  Packed<N, T> dy[K];
  Packed<N, T> x[K];
  Packed<N, T> old[K];
  float mean = 0;
  float rstd = 0;
};

/// The columns of a thread, which are the same in all rows: their weights, and in registers their
/// sums over rows.
template <int N, int K, bool kCentered, NormSums kSums, class T>
struct NormColumns {
  static constexpr bool kWeights = kSums != NormSums::none;
  static constexpr bool kStream = kSums == NormSums::weights_and_stream;

  float total[count_of(kSums)][K][N] = {};  // dweight, dbias, arriving, leaving
  Packed<N, T> weight[K];

  __device__ explicit NormColumns(const NormBackwardCall<T>& call) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) < call.C) weight[k].load(call.weight + column(k));
    }
  }
  [[nodiscard]] __device__ static Dim column(int k) {
    return static_cast<Dim>(threadIdx.x + k * blockDim.x) * N;
  }

  /// Adds the row to the sums of weights; returns this thread's part of its two dot products.
  __device__ float2 read(const NormBackwardCall<T>& call, const NormRow<N, K, T>& row) {
    float2 sums = {0, 0};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= call.C) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (row.x[k][i] - row.mean) * row.rstd;
        const float gradient = row.dy[k][i];
        const float g = gradient * weight[k][i];
        sums.x += g * normalized;
        sums.y += g;
        if constexpr (kWeights) total[0][k][i] += gradient * normalized;
        if constexpr (kWeights && kCentered) total[1][k][i] += gradient;
      }
    }
    return sums;
  }

  /// Writes the row's dx, from the dot products of the whole row, and adds it to its sums.
  __device__ void write(const NormBackwardCall<T>& call, NormRow<N, K, T>& row, float2 sums,
                        T* to) {
    const float mean_dot = sums.x / static_cast<float>(call.C);
    const float mean_g = kCentered ? sums.y / static_cast<float>(call.C) : 0.0F;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (column(k) >= call.C) continue;
      row.dy[k].keep_packed();
      row.x[k].keep_packed();
      row.old[k].keep_packed();
      weight[k].keep_packed();
      float dx[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (row.x[k][i] - row.mean) * row.rstd;
        const float g = row.dy[k][i] * weight[k][i];
        dx[i] = row.rstd * (g - mean_g - normalized * mean_dot);
        if (call.accumulate) dx[i] += row.old[k][i];
        if constexpr (kStream) {
          total[2][k][i] += row.old[k][i];
          total[3][k][i] += rounded<T>(dx[i]);  // as it is stored
        }
      }
      store<N>(to + column(k), dx);
    }
  }
};

}  // namespace hyperslab::ops::cuda
