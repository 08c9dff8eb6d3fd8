// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops::cpu {

/// Elements of 64 bytes, to a multiple of which rows are padded, and of a panel of two such.
template <class T>
inline constexpr Dim kLanes = 64 / static_cast<Dim>(sizeof(T));
template <class T>
inline constexpr Dim kPanel = 2 * kLanes<T>;

/// A register tile is so many rows of two vectors: its sums fill most registers of the processor.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRowsOfTile = 8;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRowsOfTile = 6;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRowsOfTile = 6;
#endif
template <class T>
inline constexpr Dim kVectorLanes = kVectorBytes / static_cast<Dim>(sizeof(T));

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

/// The destination of a result: rows `row` elements apart, overwritten or added to.
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
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  Vector sum[kRows][kVectors] = {};
  for (Dim k = 0; k < K; ++k) {
    Vector right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&right[v], b + k * b_inner + v * kVectorLanes<T>, sizeof(right[v]));
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
        std::memcpy(&old, out + v * kVectorLanes<T>, sizeof(old));
        value += old;
      }
      std::memcpy(out + v * kVectorLanes<T>, &value, sizeof(value));
    }
  }
}

template <class T, int kVectors>
void small_gemm_columns(Dim M, Dim K, Left<T> a, const T* b, Dim b_inner, Output<T> c) {
  constexpr int kRows = kRowsOfTile;
  const auto from = [a](Dim i) { return Left<T>{a.data + i * a.row, a.row, a.inner}; };
  Dim i = 0;
  for (; i + kRows <= M; i += kRows) {
    small_gemm_tile<T, kRows, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
  }
  for (; i + 2 <= M; i += 2) small_gemm_tile<T, 2, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
  if (i < M) small_gemm_tile<T, 1, kVectors>(K, from(i), b, b_inner, c.at(i, 0));
}

/// c (+)= a b with c: (M, N) and N a multiple of kLanes. For the small GEMMs of attention, whose
/// operands are in cache and a library's packing costs as much as the work.
template <class T>
void small_gemm(Dim M, Dim N, Dim K, Left<T> a, Right<T> b, Output<T> c) {
  constexpr Dim kWidth = 2 * kVectorLanes<T>;
  for (Dim j = 0; j < N; j += kWidth) {
    const T* columns = b.data + j / kPanel<T> * b.panel + j % kPanel<T>;
    if (N - j >= kWidth) {
      small_gemm_columns<T, 2>(M, K, a, columns, b.inner, c.at(0, j));
    } else {
      small_gemm_columns<T, 1>(M, K, a, columns, b.inner, c.at(0, j));
    }
  }
}

}  // namespace hyperslab::ops::cpu
