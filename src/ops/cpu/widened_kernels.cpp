// SPDX-License-Identifier: Apache-2.0
#include "widened_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include "quantized_codes.hpp"

#define HS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,f16c")))
#define HS_INLINE inline __attribute__((always_inline))

namespace hyperslab::ops::cpu {
namespace {

template <int kRows, int kWeightRows>
struct Lanes {
  __m512 of[kRows][kWeightRows];
};

template <int kRows, int kWeightRows>
HS_AVX512 HS_INLINE void clear(Lanes<kRows, kWeightRows>& lanes) {
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < kWeightRows; ++i) lanes.of[row][i] = _mm512_setzero_ps();
  }
}

template <int kRows, int kWeightRows>
HS_AVX512 HS_INLINE void store_sums(Lanes<kRows, kWeightRows>& lanes, float* sums) {
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int i = 0; i < kWeightRows; ++i) {
      sums[row * 4 + i] = _mm512_reduce_add_ps(lanes.of[row][i]);
    }
  }
}

/// One step of up to 16 columns, as `mask` selects them.
template <int kRows, int kWeightRows>
HS_AVX512 HS_INLINE void add_bytes(const FloatRows& x, const std::uint8_t* codes, Dim k,
                                   __mmask16 mask, Lanes<kRows, kWeightRows>& lanes) {
  __m512 wide[kWeightRows];
#pragma GCC unroll 4
  for (int i = 0; i < kWeightRows; ++i) {
    const __m128i bytes = _mm_maskz_loadu_epi8(mask, codes + i * x.K + k);
    wide[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    const __m512 left = _mm512_maskz_loadu_ps(mask, x.data + row * x.K + k);
#pragma GCC unroll 4
    for (int i = 0; i < kWeightRows; ++i) {
      lanes.of[row][i] = _mm512_fmadd_ps(left, wide[i], lanes.of[row][i]);
    }
  }
}

/// int8: the scale of a row is common to all its products and comes last.
template <int kRows, int kWeightRows>
HS_AVX512 void byte_tile(const FloatRows& x, const CQuantizedMatrix& weight, Dim first,
                         float* sums) {
  const auto* codes = static_cast<const std::uint8_t*>(weight.codes.raw()) + first * x.K;
  Lanes<kRows, kWeightRows> lanes;
  clear(lanes);
  Dim k = 0;
  for (; k + 16 <= x.K; k += 16) add_bytes(x, codes, k, __mmask16{0xFFFF}, lanes);
  if (k < x.K) {
    add_bytes(x, codes, k, static_cast<__mmask16>((1U << static_cast<unsigned>(x.K - k)) - 1U),
              lanes);
  }
  store_sums(lanes, sums);
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < kWeightRows; ++i) {
      sums[row * 4 + i] *= scale_of<WeightFormat::int8>(weight, first + i);
    }
  }
}

/// scale_of, with the processor's own conversion.
template <WeightFormat format>
HS_AVX512 HS_INLINE float group_scale(const CQuantizedMatrix& weight, Dim group) {
  if constexpr (format == WeightFormat::int4) {
    return _cvtsh_ss(static_cast<const f16*>(weight.scales.raw())[group].bits);
  } else {
    return scale_of<format>(weight, group);
  }
}

/// int4 and nf4: the table of the 16 levels is multiplied by the scale of a group, and looked up.
template <WeightFormat format, int kRows, int kWeightRows>
HS_AVX512 void nibble_tile(const FloatRows& x, const CQuantizedMatrix& weight, Dim first,
                           float* sums) {
  const Dim half = x.K / 2;
  const Dim groups = x.K / weight.group;
  const auto* codes = static_cast<const std::uint8_t*>(weight.codes.raw()) + first * half;
  const __m512 levels = _mm512_loadu_ps(kNibbleLevels<format>.data());
  Lanes<kRows, kWeightRows> lanes;
  clear(lanes);
  for (Dim group = 0; group < groups; ++group) {
    __m512 table[kWeightRows];
#pragma GCC unroll 4
    for (int i = 0; i < kWeightRows; ++i) {
      const float scale = group_scale<format>(weight, (first + i) * groups + group);
      table[i] = _mm512_mul_ps(levels, _mm512_set1_ps(scale));
    }
    const Dim end = (group + 1) * weight.group / 2;
    for (Dim k = group * weight.group / 2; k < end; k += 16) {
      __m512 even[kWeightRows];
      __m512 odd[kWeightRows];
#pragma GCC unroll 4
      for (int i = 0; i < kWeightRows; ++i) {
        const __m512i bytes = _mm512_cvtepu8_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i * half + k)));
        even[i] = _mm512_permutexvar_ps(bytes, table[i]);  // by the low four bits
        odd[i] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table[i]);
      }
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const __m512 left = _mm512_loadu_ps(x.data + row * x.K + k);
        const __m512 right = _mm512_loadu_ps(x.data + row * x.K + half + k);
#pragma GCC unroll 4
        for (int i = 0; i < kWeightRows; ++i) {
          lanes.of[row][i] = _mm512_fmadd_ps(left, even[i], lanes.of[row][i]);
          lanes.of[row][i] = _mm512_fmadd_ps(right, odd[i], lanes.of[row][i]);
        }
      }
    }
  }
  store_sums(lanes, sums);
}

template <int kRows, int kWeightRows>
void dots(const FloatRows& x, const CQuantizedMatrix& weight, Dim first, float* sums) {
  using enum WeightFormat;
  switch (weight.format) {
    case int8: return byte_tile<kRows, kWeightRows>(x, weight, first, sums);
    case int4: return nibble_tile<int4, kRows, kWeightRows>(x, weight, first, sums);
    case nf4: return nibble_tile<nf4, kRows, kWeightRows>(x, weight, first, sums);
  }
}

template <int kWeightRows>
void dots_of_rows(const FloatRows& x, const CQuantizedMatrix& weight, Dim first, float* sums) {
  switch (x.rows) {
    case 1: return dots<1, kWeightRows>(x, weight, first, sums);
    case 2: return dots<2, kWeightRows>(x, weight, first, sums);
    case 3: return dots<3, kWeightRows>(x, weight, first, sums);
    default: return dots<4, kWeightRows>(x, weight, first, sums);
  }
}

}  // namespace

bool widened_kernels_read(const CQuantizedMatrix& weight) {
  return weight.format == WeightFormat::int8 || weight.group % 32 == 0;
}

void widened_dots(const FloatRows& x, const CQuantizedMatrix& weight, Dim first, int weight_rows,
                  float* sums) {
  if (weight_rows == 4) return dots_of_rows<4>(x, weight, first, sums);
  dots_of_rows<1>(x, weight, first, sums);
}

}  // namespace hyperslab::ops::cpu
#else
namespace hyperslab::ops::cpu {

bool widened_kernels_read(const CQuantizedMatrix&) { return false; }
void widened_dots(const FloatRows&, const CQuantizedMatrix&, Dim, int, float*) {}

}  // namespace hyperslab::ops::cpu
#endif
