// SPDX-License-Identifier: Apache-2.0
#include "amx.hpp"
#include "int8_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "avx512_transpose.hpp"

#define HS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define HS_AMX __attribute__((target("amx-tile,amx-int8,avx512f,avx512bw,avx512vl")))
#define HS_INLINE inline __attribute__((always_inline))

// vpdpbusd multiplies unsigned with signed bytes, and adds fours of products to 32 bits without
// saturation. Weights are made unsigned by turning their sign bit (code + 128); 128 times the sum
// of the activations is taken off in the end.

namespace hyperslab::ops::cpu {
namespace {

HS_AVX512 HS_INLINE __m512i load_bytes(const void* from) { return _mm512_loadu_si512(from); }

/// The sums of the lanes of four vectors.
HS_AVX512 HS_INLINE __m128i sums_of_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/// One step of up to 64 columns, as `mask` selects them.
template <int kRows, int kWeightRows>
HS_AVX512 HS_INLINE void add_products(const Int8Rows& x, const Int8Weights& weights, Dim k,
                                      __mmask64 mask, __m512i (&lanes)[kRows][kWeightRows]) {
  const __m512i sign = _mm512_set1_epi8(-128);
  __m512i right[kWeightRows];
#pragma GCC unroll 4
  for (int column = 0; column < kWeightRows; ++column) {
    const std::uint8_t* from = weights.codes + column * weights.K + k;
    right[column] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, from), sign);
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const __m512i left = load_bytes(x.codes + row * x.pitch + k);
#pragma GCC unroll 4
    for (int column = 0; column < kWeightRows; ++column) {
      lanes[row][column] = _mm512_dpbusd_epi32(lanes[row][column], right[column], left);
    }
  }
}

template <int kRows, int kWeightRows>
HS_AVX512 void vnni_tile(const Int8Rows& x, const Int8Weights& weights, std::int32_t* sums,
                         Dim pitch) {
  __m512i lanes[kRows][kWeightRows];
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int column = 0; column < kWeightRows; ++column) {
      lanes[row][column] = _mm512_setzero_si512();
    }
  }
  const Dim whole = weights.K / 64 * 64;
  for (Dim k = 0; k < whole; k += 64) {
    add_products<kRows, kWeightRows>(x, weights, k, ~__mmask64{0}, lanes);
  }
  if (whole < weights.K) {  // activations are zero there
    const __mmask64 mask = (__mmask64{1} << (weights.K - whole)) - 1;
    add_products<kRows, kWeightRows>(x, weights, whole, mask, lanes);
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const std::int32_t offset = 128 * x.sums[row];
    if constexpr (kWeightRows == 4) {
      const __m128i total =
          sums_of_lanes(lanes[row][0], lanes[row][1], lanes[row][2], lanes[row][3]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + row * pitch),
                       _mm_sub_epi32(total, _mm_set1_epi32(offset)));
    } else {
      sums[row * pitch] = _mm512_reduce_add_epi32(lanes[row][0]) - offset;
    }
  }
}

template <int kWeightRows>
void vnni_rows(int rows, const Int8Rows& x, const Int8Weights& weights, std::int32_t* sums,
               Dim pitch) {
  switch (rows) {
    case 1: return vnni_tile<1, kWeightRows>(x, weights, sums, pitch);
    case 2: return vnni_tile<2, kWeightRows>(x, weights, sums, pitch);
    case 3: return vnni_tile<3, kWeightRows>(x, weights, sums, pitch);
    default: return vnni_tile<4, kWeightRows>(x, weights, sums, pitch);
  }
}

void vnni_dots(int rows, int weight_rows, const Int8Rows& x, const Int8Weights& weights,
               std::int32_t* sums, Dim pitch) {
  if (weight_rows == 4) return vnni_rows<4>(rows, x, weights, sums, pitch);
  vnni_rows<1>(rows, x, weights, sums, pitch);
}

/// Packs codes plus `kOffset`, 0 or 128.
template <int kOffset>
HS_AVX512 void pack(const Int8Weights& weights, Dim weight_rows, std::uint8_t* panels) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(-kOffset));
  for (Dim first = 0; first < weight_rows; first += kPanelRows) {
    const Dim last = std::min(first + kPanelRows, weight_rows) - 1;
    for (Dim k = 0; k < weights.K; k += 64) {
      const Dim count = std::min<Dim>(64, weights.K - k);
      const __mmask64 mask = ~__mmask64{0} >> (64 - count);
      __m512i block[16];
#pragma GCC unroll 16
      for (Dim i = 0; i < 16; ++i) {
        const std::uint8_t* from = weights.codes + std::min(first + i, last) * weights.K + k;
        block[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, from), sign);
      }
      transpose_words(block);
#pragma GCC unroll 16
      for (const __m512i& words : block) {
        _mm512_store_si512(panels, words);
        panels += 64;
      }
    }
  }
}

template <int kRows, int kCount>
HS_AVX512 void vnni_panel_tile(const Int8Rows& x, const std::uint8_t* packed, std::int32_t* sums,
                               Dim pitch) {
  __m512i lanes[kRows][kCount];
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kCount; ++panel) {
      lanes[row][panel] = _mm512_set1_epi32(-128 * x.sums[row]);
    }
  }
  for (Dim k = 0; k < x.columns; k += 4) {
    __m512i right[kCount];
#pragma GCC unroll 4
    for (int panel = 0; panel < kCount; ++panel) {
      right[panel] = load_bytes(packed + panel * kPanelRows * x.columns + k * kPanelRows);
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      std::int32_t four;
      std::memcpy(&four, x.codes + row * x.pitch + k, sizeof(four));
      const __m512i left = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int panel = 0; panel < kCount; ++panel) {
        lanes[row][panel] = _mm512_dpbusd_epi32(lanes[row][panel], right[panel], left);
      }
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int panel = 0; panel < kCount; ++panel) {
      _mm512_storeu_si512(sums + row * pitch + panel * kPanelRows, lanes[row][panel]);
    }
  }
}

Int8Rows rows_from(const Int8Rows& x, Dim row) {
  return {x.codes + row * x.pitch, x.pitch, x.columns, x.sums + row};
}

template <int kCount>
void vnni_panel_rows(Dim rows, const Int8Rows& x, const std::uint8_t* packed, std::int32_t* sums,
                     Dim pitch) {
  Dim row = 0;
  for (; row + 6 <= rows; row += 6) {
    vnni_panel_tile<6, kCount>(rows_from(x, row), packed, sums + row * pitch, pitch);
  }
  for (; row + 2 <= rows; row += 2) {
    vnni_panel_tile<2, kCount>(rows_from(x, row), packed, sums + row * pitch, pitch);
  }
  if (row < rows) {
    vnni_panel_tile<1, kCount>(rows_from(x, row), packed, sums + row * pitch, pitch);
  }
}

void vnni_panel_sums(Dim rows, Dim panels, const Int8Rows& x, const std::uint8_t* packed,
                     std::int32_t* sums, Dim pitch) {
  if (panels == kPanels) return vnni_panel_rows<kPanels>(rows, x, packed, sums, pitch);
  for (Dim panel = 0; panel < panels; ++panel) {
    vnni_panel_rows<1>(rows, x, packed + panel * kPanelRows * x.columns, sums + panel * kPanelRows,
                       pitch);
  }
}

/// sums (32, 32) of 32 activation rows with two panels.
HS_AMX HS_INLINE void amx_tile(const Int8Rows& x, const std::uint8_t* packed, std::int32_t* sums,
                               Dim pitch) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const std::uint8_t* second = packed + kPanelRows * x.columns;
  for (Dim k = 0; k < x.columns; k += 64) {
    _tile_loadd(6, packed + k * kPanelRows, 64);
    _tile_loadd(4, x.codes + k, x.pitch);
    _tile_loadd(7, second + k * kPanelRows, 64);
    _tile_loadd(5, x.codes + 16 * x.pitch + k, x.pitch);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, sums, pitch * 4);
  _tile_stored(1, sums + 16, pitch * 4);
  _tile_stored(2, sums + 16 * pitch, pitch * 4);
  _tile_stored(3, sums + 16 * pitch + 16, pitch * 4);
}

/// Signed bytes with signed ones, in whole tiles: there is memory for a multiple of kTileRows
/// rows and an even number of panels.
HS_AMX void amx_panel_sums(Dim rows, Dim panels, const Int8Rows& x, const std::uint8_t* packed,
                           std::int32_t* sums, Dim pitch) {
  const TileConfiguration configuration;
  _tile_loadconfig(&configuration);
  for (Dim panel = 0; panel < panels; panel += 2) {
    for (Dim row = 0; row < rows; row += kTileRows) {
      amx_tile(rows_from(x, row), packed + panel * kPanelRows * x.columns,
               sums + row * pitch + panel * kPanelRows, pitch);
    }
  }
  _tile_release();
}

}  // namespace

const Int8Kernels kVnniKernels = {4, vnni_dots, 12, pack<128>, vnni_panel_sums};
const Int8Kernels kAmxKernels = {4, vnni_dots, 10, pack<0>, amx_panel_sums};

}  // namespace hyperslab::ops::cpu
#endif
