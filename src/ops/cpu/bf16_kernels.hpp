// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "bf16_gemm.hpp"

// The kernels of bf16_gemm; bf16_avx512.cpp defines them where the processor is an x86.

namespace hyperslab::ops::cpu {

/// Two neighbours along k of one row or column, the first in the low half.
using Bf16Pair = std::uint32_t;

/// Rows and columns of the result that are kept in registers.
inline constexpr Dim kTileRows = 14;
inline constexpr Dim kTileColumns = 32;
/// Packing writes up to so many pairs behind a panel of kTileRows.
inline constexpr Dim kPackSlack = 16 - kTileRows;

/// Pairs of a packed panel for `k` elements: with AMX whole tiles of 16, which zeros fill.
[[nodiscard]] Dim pairs_of(Dim k);

/// Rows of an operand, each of which has `k` elements along the summed dimension: element (i, k) is
/// data[i * row + k], or data[k * row + i] if `k_strides`.
struct Bf16Rows {
  const bf16* data;
  Dim row;
  bool k_strides;
  [[nodiscard]] Bf16Rows at(Dim i, Dim k) const {
    return {data + (k_strides ? k * row + i : i * row + k), row, k_strides};
  }
};

/// Packs up to kTileRows or kTileColumns rows, (pairs_of(k), kTileRows or kTileColumns), with AMX
/// the left ones as (kTileRows, pairs_of(k)); missing elements become zero.
void pack_left(Bf16Rows rows, Dim count, Dim k, Bf16Pair* panel);
void pack_right(Bf16Rows rows, Dim count, Dim k, Bf16Pair* panel);

/// sums (+)= left right^T for up to kTileRows rows and all kTileColumns.
void bf16_tile(Dim rows, Dim pairs, const Bf16Pair* left, const Bf16Pair* right,
               Result<float> sums);

/// Elements of the result, at `c`, from their sums.
void finish_tile(Dim rows, Dim columns, float alpha, Result<const float> sums, const Bf16Result& c);

}  // namespace hyperslab::ops::cpu
