// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace hyperslab::ops::cpu {

/// Transposes 16 x 16 words of 32 bits.
inline __attribute__((always_inline, target("avx512f"))) void transpose_words(__m512i (&v)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // v[i + j]: word 4 lane + j of rows i to i + 3
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low02 = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88);
    const __m512i low13 = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xDD);
    const __m512i high02 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
    const __m512i high13 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xDD);
    t[j] = _mm512_shuffle_i32x4(low02, high02, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(low13, high13, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(low02, high02, 0xDD);
    t[12 + j] = _mm512_shuffle_i32x4(low13, high13, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

}  // namespace hyperslab::ops::cpu
