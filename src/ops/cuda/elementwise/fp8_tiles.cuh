// SPDX-License-Identifier: Apache-2.0
// FP8 values by tiles of 128 x 128 values: a thread takes 8 x 8 of them, which change
// places in registers and in shared memory, so that FP8 values of a matrix and of its transpose are
// both written in whole lines.
#pragma once

#include <cuda_fp8.h>

#include "cuda/tools/amax.cuh"
#include "fp8_scale.hpp"

namespace hyperslab::ops::cuda::fp8 {

inline constexpr int kSide = 8;                   // values of a thread, by rows and by columns
inline constexpr int kTile = 128;                 // values of a block, likewise
inline constexpr int kUnits = kTile / kSide;      // threads of a block, likewise
inline constexpr int kThreads = kUnits * kUnits;  // threads of a block
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

/// A matrix and where this thread's values are in it.
template <class T>
struct Values {
  const T* x;
  Dim rows, columns;
  [[nodiscard]] __device__ Dim first_row() const {
    return static_cast<Dim>(blockIdx.y) * kTile + threadIdx.x / kUnits * kSide;
  }
  [[nodiscard]] __device__ Dim first_column() const {
    return static_cast<Dim>(blockIdx.x) * kTile + threadIdx.x % kUnits * kSide;
  }
  /// Rows of this thread that are there; 0 if its columns are not.
  [[nodiscard]] __device__ int count() const {
    if (first_column() >= columns) return 0;
    return static_cast<int>(max(Dim{0}, min(Dim{kSide}, rows - first_row())));
  }
  /// All of this thread's values, so that the loads are in progress together; zeros beyond the end.
  __device__ void all(Vec<T, kSide> (&to)[kSide]) const {
    const int there = count();
    const T* from = x + first_row() * columns + first_column();
#pragma unroll
    for (int i = 0; i < kSide; ++i, from += columns) {
      to[i] = {};
      if (i < there) to[i] = load_raw<kSide>(from);
    }
  }
};

template <Fp8Format kFormat>
__device__ inline __nv_fp8_interpretation_t interpretation() {
  return kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2;
}

/// Two FP8 values, `low`'s first.
template <Fp8Format kFormat>
__device__ inline unsigned pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                  interpretation<kFormat>());
}

/// Eight FP8 values as two words.
using Eight = uint2;

template <Fp8Format kFormat>
__device__ inline Eight encode(const float (&values)[kSide], const float (&inverses)[kSide]) {
  unsigned pairs[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    pairs[k] = pair<kFormat>(__fmul_rn(values[2 * k], inverses[2 * k]),
                             __fmul_rn(values[2 * k + 1], inverses[2 * k + 1]));
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

/// Rows and columns of 4 x 4 bytes change places.
__device__ inline void transpose4(unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
  const unsigned ab_low = __byte_perm(a, b, 0x5140);
  const unsigned ab_high = __byte_perm(a, b, 0x7362);
  const unsigned cd_low = __byte_perm(c, d, 0x5140);
  const unsigned cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Rows and columns of 8 x 8 bytes change places.
__device__ inline void transpose8(Eight (&rows)[kSide]) {
  transpose4(rows[0].x, rows[1].x, rows[2].x, rows[3].x);
  transpose4(rows[0].y, rows[1].y, rows[2].y, rows[3].y);
  transpose4(rows[4].x, rows[5].x, rows[6].x, rows[7].x);
  transpose4(rows[4].y, rows[5].y, rows[6].y, rows[7].y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned upper = rows[i].y;
    rows[i].y = rows[i + 4].x;
    rows[i + 4].x = upper;
  }
}

/// The FP8 values of a tile of the transpose, eight of a row each.
using TurnedValues = Eight[kTile][kUnits];

/// Writes the FP8 values of this thread's rows into the transpose: (lines, width). Of all threads
/// of a block; shared memory is free before.
__device__ inline void write_transposed(Eight (&rows)[kSide], TurnedValues& shared, Dim lines,
                                        Dim width, std::uint8_t* values) {
  const int unit = static_cast<int>(threadIdx.x % kUnits);
  const int row_unit = static_cast<int>(threadIdx.x / kUnits);
  transpose8(rows);
  // The slot in a row of shared memory changes with the row, so that no two threads of a half
  // warp meet in a bank.
#pragma unroll
  for (int k = 0; k < kSide; ++k) shared[unit * kSide + k][row_unit ^ unit] = rows[k];
  __syncthreads();
  const Dim to_row = static_cast<Dim>(blockIdx.x) * kTile + row_unit;
  const Dim to_column = static_cast<Dim>(blockIdx.y) * kTile;
  std::uint8_t* to = values + to_row * width + to_column;
#pragma unroll
  for (int pass = 0; pass < kSide; ++pass, to += kUnits * width) {
    const int line = pass * kUnits + row_unit;
    const int offset = (unit ^ (line / kSide)) * kSide;
    if (to_row + pass * kUnits < lines && to_column + offset < width) {
      *reinterpret_cast<Eight*>(to + offset) = shared[line][unit];
    }
  }
}

/// The grid of tiles that cover rows x columns.
inline dim3 tiles_of(Dim rows, Dim columns) {
  return {static_cast<unsigned>(ceil_divide(columns, kTile)),
          static_cast<unsigned>(ceil_divide(rows, kTile))};
}

}  // namespace hyperslab::ops::cuda::fp8

namespace hyperslab::ops::cuda {

/// fp8_quantize of scales of groups and of blocks.
void fp8_quantize_groups(Context& ctx, CView x, const Fp8Matrix& straight,
                         const Fp8Matrix& transposed);

}  // namespace hyperslab::ops::cuda
