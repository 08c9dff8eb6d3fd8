// SPDX-License-Identifier: Apache-2.0
#include "int8_kernels.hpp"

#include "amx.hpp"
#include "hyperslab/core/error.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hyperslab::ops::cpu {
namespace {

void portable_dots(int rows, int weight_rows, const Int8Rows& x, const Int8Weights& weights,
                   std::int32_t* sums, Dim pitch) {
  for (int row = 0; row < rows; ++row) {
    const std::int8_t* left = x.codes + row * x.pitch;
    for (int column = 0; column < weight_rows; ++column) {
      const auto* right = reinterpret_cast<const std::int8_t*>(weights.codes) + column * weights.K;
      std::int32_t sum = 0;
      for (Dim k = 0; k < weights.K; ++k) sum += left[k] * right[k];
      sums[row * pitch + column] = sum;
    }
  }
}

constexpr Int8Kernels kPortableKernels = {4, portable_dots, 0, nullptr, nullptr};

#if defined(__x86_64__)
#define HS_AVX2 __attribute__((target("avx2")))

HS_AVX2 inline std::int32_t sum_of_lanes(__m256i lanes) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(sum);
}

/// The instruction multiplies unsigned with signed bytes and adds pairs in 16 bits: |x| times the
/// weight with the sign of x. A pair is at most 2 * 127 * 127, so that nothing saturates.
template <int kRows, int kWeightRows>
HS_AVX2 void avx2_tile(const Int8Rows& x, const Int8Weights& weights, std::int32_t* sums,
                       Dim pitch) {
  __m256i lanes[kRows][kWeightRows] = {};
  const __m256i ones = _mm256_set1_epi16(1);
  const Dim whole = weights.K / 32 * 32;
  for (Dim k = 0; k < whole; k += 32) {
    __m256i right[kWeightRows];
    for (int column = 0; column < kWeightRows; ++column) {
      right[column] = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(weights.codes + column * weights.K + k));
    }
    for (int row = 0; row < kRows; ++row) {
      const __m256i left =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.codes + row * x.pitch + k));
      const __m256i magnitude = _mm256_abs_epi8(left);
      for (int column = 0; column < kWeightRows; ++column) {
        const __m256i pairs =
            _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(right[column], left));
        lanes[row][column] = _mm256_add_epi32(lanes[row][column], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kWeightRows; ++column) {
      // Signed in memory, too: GCC 12 takes bytes that a cast makes signed for unsigned ones.
      const auto* rest = reinterpret_cast<const std::int8_t*>(weights.codes) + column * weights.K;
      std::int32_t sum = sum_of_lanes(lanes[row][column]);
      for (Dim k = whole; k < weights.K; ++k) sum += x.codes[row * x.pitch + k] * rest[k];
      sums[row * pitch + column] = sum;
    }
  }
}

HS_AVX2 void avx2_dots(int rows, int weight_rows, const Int8Rows& x, const Int8Weights& weights,
                       std::int32_t* sums, Dim pitch) {
  if (weight_rows == 4) {
    rows == 2 ? avx2_tile<2, 4>(x, weights, sums, pitch) : avx2_tile<1, 4>(x, weights, sums, pitch);
  } else {
    rows == 2 ? avx2_tile<2, 1>(x, weights, sums, pitch) : avx2_tile<1, 1>(x, weights, sums, pitch);
  }
}

constexpr Int8Kernels kAvx2Kernels = {2, avx2_dots, 0, nullptr, nullptr};
#endif

}  // namespace

#if defined(__x86_64__)
bool has(InstructionSet set) {
  switch (set) {
    case InstructionSet::portable: return true;
    case InstructionSet::avx2: return __builtin_cpu_supports("avx2") != 0;
    case InstructionSet::amx:
      return has(InstructionSet::avx512_vnni) && may_use_amx(AmxProducts::int8);
    case InstructionSet::avx512_vnni:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  }
  return false;
}

const Int8Kernels& int8_kernels(InstructionSet set) {
  switch (set) {
    case InstructionSet::portable: return kPortableKernels;
    case InstructionSet::avx2: return kAvx2Kernels;
    case InstructionSet::avx512_vnni: return kVnniKernels;
    case InstructionSet::amx: return kAmxKernels;
  }
  return kPortableKernels;
}
#else
bool has(InstructionSet set) { return set == InstructionSet::portable; }
const Int8Kernels& int8_kernels(InstructionSet) { return kPortableKernels; }
#endif

InstructionSet best_instruction_set() {
  static const InstructionSet best = [] {
    auto fastest = InstructionSet::portable;
    for (const InstructionSet set : kInstructionSets) {
      if (has(set)) fastest = set;
    }
    return fastest;
  }();
  return best;
}

}  // namespace hyperslab::ops::cpu
