// SPDX-License-Identifier: Apache-2.0
#include "bf16_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "amx.hpp"
#include "avx512_transpose.hpp"
#include "bf16_rounding.hpp"
#include "hyperslab/core/round_up.hpp"

#define HS_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define HS_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define HS_INLINE inline __attribute__((always_inline))

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kLanes = 16;  // pairs of one vector

/// Up to 16 rows whose pairs lie side by side, to `to`, kWidth pairs from one k to the next.
template <Dim kWidth>
HS_BF16 void pack_neighbours(Bf16Rows rows, Dim count, Dim k, Bf16Pair* to) {
  for (Dim first = 0; first < k; first += 2 * kLanes) {
    const Dim here = std::min(2 * kLanes, k - first);
    const __mmask32 mask = ~__mmask32{0} >> (2 * kLanes - here);
    __m512i block[kLanes];
#pragma GCC unroll 16
    for (Dim i = 0; i < kLanes; ++i) {
      const bf16* from = rows.data + std::min(i, count - 1) * rows.row + first;
      block[i] = _mm512_maskz_loadu_epi16(i < count ? mask : 0, from);
    }
    transpose_words(block);
    const Dim pairs = (here + 1) / 2;
    for (Dim p = 0; p < pairs; ++p) _mm512_storeu_si512(to + p * kWidth, block[p]);
    to += pairs * kWidth;
  }
}

/// Up to 16 rows whose elements of one k lie side by side.
template <Dim kWidth>
HS_BF16 void pack_strides(Bf16Rows rows, Dim count, Dim k, Bf16Pair* to) {
  const auto mask = static_cast<__mmask16>((1U << count) - 1U);
  for (Dim p = 0; 2 * p < k; ++p) {
    const bf16* low = rows.data + 2 * p * rows.row;
    const bool is_pair = 2 * p + 1 < k;
    const __m256i even = _mm256_maskz_loadu_epi16(mask, low);
    const __m256i odd =
        _mm256_maskz_loadu_epi16(is_pair ? mask : __mmask16{0}, is_pair ? low + rows.row : low);
    _mm512_storeu_si512(to + p * kWidth,
                        _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                        _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16)));
  }
}

template <Dim kWidth>
HS_BF16 void pack(Bf16Rows rows, Dim count, Dim k, Bf16Pair* panel) {
  const Dim filled = (k + 1) / 2;
  std::fill_n(panel + filled * kWidth, (pairs_of(k) - filled) * kWidth, 0U);
  for (Dim first = 0; first < kWidth; first += kLanes) {
    const Dim here = std::clamp<Dim>(count - first, 0, std::min(kLanes, kWidth));
    if (here == 0) {
      for (Dim p = 0; p < filled; ++p) std::fill_n(panel + p * kWidth + first, kLanes, 0U);
    } else if (rows.k_strides) {
      pack_strides<kWidth>(rows.at(first, 0), here, k, panel + first);
    } else {
      pack_neighbours<kWidth>(rows.at(first, 0), here, k, panel + first);
    }
  }
}

HS_BF16 HS_INLINE __m512bh pairs_in(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

template <int kRows>
HS_BF16 void tile(Dim pairs, const Bf16Pair* left, const Bf16Pair* right, Result<float> sums) {
  __m512 sum[kRows][2];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (Dim p = 0; p < pairs; ++p) {
    const __m512bh right0 = pairs_in(_mm512_loadu_si512(right));
    const __m512bh right1 = pairs_in(_mm512_loadu_si512(right + kLanes));
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const __m512bh both = pairs_in(_mm512_set1_epi32(static_cast<int>(left[i])));
      sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, right0);
      sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, right1);
    }
    left += kTileRows;
    right += kTileColumns;
  }
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    float* out = sums.data + i * sums.row;
    if (sums.beta != 0) {
      sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_loadu_ps(out));
      sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_loadu_ps(out + kLanes));
    }
    _mm512_storeu_ps(out, sum[i][0]);
    _mm512_storeu_ps(out + kLanes, sum[i][1]);
  }
}

using Tile = void (*)(Dim, const Bf16Pair*, const Bf16Pair*, Result<float>);
template <int... kBefore>
constexpr std::array<Tile, sizeof...(kBefore)> tiles(std::integer_sequence<int, kBefore...>) {
  return {tile<kBefore + 1>...};
}
constexpr auto kTiles = tiles(std::make_integer_sequence<int, kTileRows>());

/// Up to kTileRows rows, `pitch` pairs from one to the next.
HS_BF16 void pack_rows(Bf16Rows rows, Dim count, Dim k, Dim pitch, Bf16Pair* panel) {
  for (Dim first = 0; first < pitch; first += kLanes) {
    const Dim here = std::min(2 * kLanes, k - 2 * first);
    __m512i block[kLanes];
    if (rows.k_strides) {
      alignas(64) Bf16Pair of_k[kLanes * kLanes] = {};
      pack_strides<kLanes>(rows.at(0, 2 * first), count, here, of_k);
      for (Dim i = 0; i < kLanes; ++i) block[i] = _mm512_load_si512(of_k + i * kLanes);
      transpose_words(block);
    } else {
      const __mmask32 mask = ~__mmask32{0} >> (2 * kLanes - here);
      for (Dim i = 0; i < count; ++i) {
        block[i] = _mm512_maskz_loadu_epi16(mask, rows.data + i * rows.row + 2 * first);
      }
    }
    for (Dim i = 0; i < count; ++i) _mm512_storeu_si512(panel + i * pitch + first, block[i]);
  }
}

/// Tiles 0 and 1 are sums, 2 is of the left operand, 3 and 4 of the right one.
HS_AMX void amx_tile(Dim rows, Dim pairs, const Bf16Pair* left, const Bf16Pair* right,
                     Result<float> sums) {
  TileConfiguration configuration;
  std::fill_n(configuration.rows, 3, static_cast<std::uint8_t>(rows));
  const auto word = static_cast<Dim>(sizeof(Bf16Pair));
  _tile_loadconfig(&configuration);
  if (sums.beta != 0) {
    _tile_loadd(0, sums.data, sums.row * word);
    _tile_loadd(1, sums.data + kLanes, sums.row * word);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (Dim p = 0; p < pairs; p += kLanes) {
    _tile_loadd(2, left + p, pairs * word);
    _tile_loadd(3, right + p * kTileColumns, kTileColumns * word);
    _tile_loadd(4, right + p * kTileColumns + kLanes, kTileColumns * word);
    _tile_dpbf16ps(0, 2, 3);
    _tile_dpbf16ps(1, 2, 4);
  }
  _tile_stored(0, sums.data, sums.row * word);
  _tile_stored(1, sums.data + kLanes, sums.row * word);
  _tile_release();
}

/// True if tiles of AMX multiply in place of AVX512_BF16, which is slower than fp32 on the
/// processors that have both.
bool has_amx() {
  static const bool has = may_use_amx(AmxProducts::bf16);
  return has;
}

/// A row of the tile becomes its result: alpha times it, and the bias.
HS_BF16 void scale_row(Dim columns, float alpha, const float* sums, const bf16* bias, float* to) {
  for (Dim j = 0; j < columns; ++j) to[j] = alpha * sums[j];
  if (bias == nullptr) return;
  for (Dim j = 0; j < columns; ++j) to[j] += widened(bias[j]);
}

}  // namespace

bool has_bf16_products() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  return has;
}

Dim pairs_of(Dim k) {
  const Dim pairs = (k + 1) / 2;
  return has_amx() ? round_up(pairs, kLanes) : pairs;
}

void pack_left(Bf16Rows rows, Dim count, Dim k, Bf16Pair* panel) {
  if (has_amx()) return pack_rows(rows, count, k, pairs_of(k), panel);
  pack<kTileRows>(rows, count, k, panel);
}
void pack_right(Bf16Rows rows, Dim count, Dim k, Bf16Pair* panel) {
  pack<kTileColumns>(rows, count, k, panel);
}

void bf16_tile(Dim rows, Dim pairs, const Bf16Pair* left, const Bf16Pair* right,
               Result<float> sums) {
  if (has_amx()) return amx_tile(rows, pairs, left, right, sums);
  kTiles[static_cast<std::size_t>(rows - 1)](pairs, left, right, sums);
}

HS_BF16 void finish_tile(Dim rows, Dim columns, float alpha, Result<const float> sums,
                         const Bf16Result& c) {
  for (Dim i = 0; i < rows; ++i) {
    std::array<float, kTileColumns> row;
    scale_row(columns, alpha, sums.data + i * sums.row, c.bias, row.data());
    if (c.dtype == DType::bf16) {
      bf16* to = static_cast<bf16*>(c.data) + i * c.row;
      if (c.accumulates) {
        for (Dim j = 0; j < columns; ++j) row[static_cast<std::size_t>(j)] += widened(to[j]);
      }
      round_to_bf16(row.data(), columns, to);
    } else {
      float* to = static_cast<float*>(c.data) + i * c.row;
      for (Dim j = 0; j < columns; ++j) {
        const float value = row[static_cast<std::size_t>(j)];
        to[j] = c.accumulates ? to[j] + value : value;
      }
    }
  }
}

}  // namespace hyperslab::ops::cpu
#else
namespace hyperslab::ops::cpu {

bool has_bf16_products() { return false; }
Dim pairs_of(Dim k) { return (k + 1) / 2; }
void pack_left(Bf16Rows, Dim, Dim, Bf16Pair*) {}
void pack_right(Bf16Rows, Dim, Dim, Bf16Pair*) {}
void bf16_tile(Dim, Dim, const Bf16Pair*, const Bf16Pair*, Result<float>) {}
void finish_tile(Dim, Dim, float, Result<const float>, const Bf16Result&) {}

}  // namespace hyperslab::ops::cpu
#endif
