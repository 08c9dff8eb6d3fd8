// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops::cpu {

/// Elements of one 64-byte vector, and of a panel of two.
template <class T>
inline constexpr Dim kLanes = 64 / static_cast<Dim>(sizeof(T));
template <class T>
inline constexpr Dim kPanel = 2 * kLanes<T>;

/// Left operand of a small GEMM: element (i, k) is data[i * row + k * inner].
template <class T>
struct Left {
  const T* data;
  Dim row;
  Dim inner;
};

/// Right operand in panels of kPanel columns: element (k, j) is
/// data[(j / kPanel) * panel + k * inner + j % kPanel]. A row-major matrix has panel = kPanel.
template <class T>
struct Right {
  const T* data;
  Dim inner;
  Dim panel;
};

/// Where a result goes: rows `row` elements apart, overwritten or added to.
template <class T>
struct Output {
  T* data;
  Dim row;
  bool accumulate;
  [[nodiscard]] Output at(Dim i, Dim j) const { return {data + i * row + j, row, accumulate}; }
};

/// The register tile: kRows x (kVectors vectors) of c (+)= left * right.
template <class T, int kRows, int kVectors>
[[gnu::always_inline]] inline void small_gemm_tile(Dim K, Left<T> a, const T* b, Dim b_inner,
                                                   Output<T> c) {
  typedef T Vector __attribute__((vector_size(64)));
  Vector sum[kRows][kVectors] = {};
  for (Dim k = 0; k < K; ++k) {
    Vector right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&right[v], b + k * b_inner + v * kLanes<T>, sizeof(right[v]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T left = a.data[i * a.row + k * a.inner];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    T* out = c.data + i * c.row;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      Vector value = sum[i][v];
      if (c.accumulate) {
        Vector old;
        std::memcpy(&old, out + v * kLanes<T>, sizeof(old));
        value += old;
      }
      std::memcpy(out + v * kLanes<T>, &value, sizeof(value));
    }
  }
}

template <class T, int kVectors>
void small_gemm_columns(Dim M, Dim K, Left<T> a, const T* b, Dim b_inner, Output<T> c) {
  const auto from = [a](Dim i) { return Left<T>{a.data + i * a.row, a.row, a.inner}; };
  Dim i = 0;
  for (; i + 8 <= M; i += 8) small_gemm_tile<T, 8, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
  for (; i + 2 <= M; i += 2) small_gemm_tile<T, 2, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
  if (i < M) small_gemm_tile<T, 1, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
}

/// c (+)= a b with c: (M, N) and N a multiple of kLanes. For the small GEMMs of attention, whose
/// operands are in cache and a library's packing costs as much as the work.
template <class T>
void small_gemm(Dim M, Dim N, Dim K, Left<T> a, Right<T> b, Output<T> c) {
  for (Dim j = 0; j < N; j += kPanel<T>) {
    const T* panel = b.data + j / kPanel<T> * b.panel;
    if (N - j >= kPanel<T>) {
      small_gemm_columns<T, 2>(M, K, a, panel, b.inner, c.at(0, j));
    } else {
      small_gemm_columns<T, 1>(M, K, a, panel, b.inner, c.at(0, j));
    }
  }
}

}  // namespace hyperslab::ops::cpu
