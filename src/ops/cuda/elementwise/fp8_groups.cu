// SPDX-License-Identifier: Apache-2.0
// Groups of 1 x 128 values and blocks of 128 x 128 lie within a tile, so that a block of threads
// finds their amaxes in values it holds already and reads the matrix once.
#include "fp8_tiles.cuh"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::ops::cuda {
namespace {

using namespace fp8;

static_assert(kTile == kFp8Group);

/// FP8 values and scales that are written; null: none.
struct GroupedFp8Values {
  std::uint8_t* values;
  float* scales;
  Dim rows, width;  ///< size of the matrix of values
  Dim stride;       ///< scales from a row of them to the next
  [[nodiscard]] __device__ bool has(Dim row, Dim column) const {
    return values != nullptr && row < rows && column < width;
  }
};

template <Fp8Format kFormat>
__device__ float inverse_of(unsigned bits) {
  return fp8_inverse(__uint_as_float(bits), largest_value(kFormat));
}
template <Fp8Format kFormat>
__device__ float scale_of(unsigned bits) {
  return fp8_scale(__uint_as_float(bits), largest_value(kFormat));
}

template <Fp8Format kFormat, class T>
__device__ Eight encode_row(const Vec<T, kSide>& found, const float (&inverses)[kSide]) {
  float reals[kSide];
#pragma unroll
  for (int k = 0; k < kSide; ++k) reals[k] = to_real(found.at[k]);
  return encode<kFormat>(reals, inverses);
}

template <Fp8Format kFormat, class T>
__device__ Eight encode_row(const Vec<T, kSide>& found, float inverse) {
  float inverses[kSide];
#pragma unroll
  for (float& each : inverses) each = inverse;
  return encode_row<kFormat>(found, inverses);
}

__device__ void write_eight(const GroupedFp8Values& to, Dim row, Dim column, Eight values) {
  *reinterpret_cast<Eight*>(to.values + row * to.width + column) = values;
}

/// FP8 values of groups along rows, and of groups along columns for the transpose.
template <class T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    fp8_quantize_groups_kernel(Values<T> values, GroupedFp8Values straight,
                               GroupedFp8Values transposed) {
  __shared__ TurnedValues shared;
  __shared__ unsigned of_columns[kTile];  // column 8 u + k is at 16 k + u
  overlap();
  if (threadIdx.x < kTile) of_columns[threadIdx.x] = 0;
  wait_for_earlier();
  const int unit = static_cast<int>(threadIdx.x % kUnits);
  const Dim row = values.first_row();
  const Dim column = values.first_column();
  Vec<T, kSide> found[kSide];
  values.all(found);
  unsigned of_rows[kSide];
  unsigned columns[kSide] = {};
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    of_rows[i] = 0;
#pragma unroll
    for (int k = 0; k < kSide; ++k) {
      const unsigned bits = magnitude_bits(to_real(found[i].at[k]));
      of_rows[i] = max(of_rows[i], bits);
      columns[k] = max(columns[k], bits);
    }
  }
  if (straight.values != nullptr) {
    float scales[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      // A row belongs to half a warp.
#pragma unroll
      for (int offset = kUnits / 2; offset > 0; offset /= 2) {
        of_rows[i] = max(of_rows[i], __shfl_xor_sync(kWholeWarp, of_rows[i], offset));
      }
      scales[i] = scale_of<kFormat>(of_rows[i]);
      if (straight.has(row, column)) {
        write_eight(straight, row + i, column,
                    encode_row<kFormat>(found[i], inverse_of<kFormat>(of_rows[i])));
      }
    }
    if (unit == 0 && row < straight.rows) {
      store<kSide>(straight.scales + blockIdx.x * straight.stride + row, scales);
    }
  }
  if (transposed.values == nullptr) return;
  __syncthreads();  // of_columns is zero
#pragma unroll
  for (int k = 0; k < kSide; ++k) {
    const unsigned of_both = max(columns[k], __shfl_xor_sync(kWholeWarp, columns[k], kUnits));
    if (threadIdx.x % 32 < kUnits) atomicMax(of_columns + k * kUnits + unit, of_both);
  }
  __syncthreads();
  float inverses[kSide];
#pragma unroll
  for (int k = 0; k < kSide; ++k) {
    inverses[k] = inverse_of<kFormat>(of_columns[k * kUnits + unit]);
  }
  Eight rows[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) rows[i] = encode_row<kFormat>(found[i], inverses);
  write_transposed(rows, shared, transposed.rows, transposed.width, transposed.values);
  const Dim line = static_cast<Dim>(blockIdx.x) * kTile + threadIdx.x;
  if (threadIdx.x < kTile && line < transposed.rows) {
    transposed.scales[blockIdx.y * transposed.stride + line] =
        scale_of<kFormat>(of_columns[threadIdx.x % kSide * kUnits + threadIdx.x / kSide]);
  }
}

/// The scale of block `at` of `count` in a row of them, the last of which fills the row with zeros.
__device__ void write_scale_of_block(const GroupedFp8Values& to, unsigned line, unsigned at,
                                     unsigned count, float scale) {
  if (to.values == nullptr) return;
  float* const of_line = to.scales + line * to.stride;
  if (threadIdx.x == 0) of_line[at] = scale;
  const unsigned beyond = count + threadIdx.x;
  if (at + 1 == count && beyond < to.stride) of_line[beyond] = 0;
}

/// FP8 values of blocks, which are the transpose's as well.
template <class T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    fp8_quantize_blocks_kernel(Values<T> values, GroupedFp8Values straight,
                               GroupedFp8Values transposed) {
  __shared__ TurnedValues shared;
  __shared__ unsigned of_block;
  overlap();
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  wait_for_earlier();
  const Dim row = values.first_row();
  const Dim column = values.first_column();
  Vec<T, kSide> found[kSide];
  values.all(found);
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int k = 0; k < kSide; ++k) most = max(most, magnitude_bits(to_real(found[i].at[k])));
  }
  most = __reduce_max_sync(kWholeWarp, most);
  if (threadIdx.x % 32 == 0) atomicMax(&of_block, most);
  __syncthreads();
  const float inverse = inverse_of<kFormat>(of_block);
  const float scale = scale_of<kFormat>(of_block);
  write_scale_of_block(straight, blockIdx.y, blockIdx.x, gridDim.x, scale);
  write_scale_of_block(transposed, blockIdx.x, blockIdx.y, gridDim.y, scale);
  Eight rows[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    rows[i] = encode_row<kFormat>(found[i], inverse);
    if (straight.has(row, column)) write_eight(straight, row + i, column, rows[i]);
  }
  if (transposed.values == nullptr) return;
  write_transposed(rows, shared, transposed.rows, transposed.width, transposed.values);
}

GroupedFp8Values grouped_fp8_values_of(const Fp8Matrix& matrix) {
  if (!matrix.values) return {};
  if (!aligned(matrix.values.raw(), matrix.scales.raw())) {
    throw Error(ExitCode::internal,
                "fp8_quantize: FP8 values and scales on a GPU begin at multiples of 16 bytes");
  }
  const auto [rows, width] = matrix.values.dims<2>("fp8_quantize values");
  return {matrix.values.data<std::uint8_t>(), matrix.scales.data<float>(), rows, width,
          matrix.scales.shape()[1]};
}

template <class T, Fp8Format kFormat>
void quantize_groups_as(Context& ctx, CView x, const Fp8Matrix& straight,
                        const Fp8Matrix& transposed) {
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  const Values<T> values = {x.data<T>(), rows, columns};
  // The rows that fill either matrix are written, too.
  const Grid grid = {tiles_of(round_up(rows, kFp8Multiple), columns), kThreads};
  const auto kernel = (straight.values ? straight : transposed).scaling == Fp8Scaling::group
                          ? fp8_quantize_groups_kernel<T, kFormat>
                          : fp8_quantize_blocks_kernel<T, kFormat>;
  launch_waiting(ctx, "fp8_quantize", rows, kernel, grid, values, grouped_fp8_values_of(straight),
                 grouped_fp8_values_of(transposed));
}

}  // namespace

void fp8_quantize_groups(Context& ctx, CView x, const Fp8Matrix& straight,
                         const Fp8Matrix& transposed) {
  const Fp8Format format = (straight.values ? straight : transposed).format;
  with_element(x.dtype(), "fp8_quantize", [&]<class T>(T) {
    format == Fp8Format::e4m3
        ? quantize_groups_as<T, Fp8Format::e4m3>(ctx, x, straight, transposed)
        : quantize_groups_as<T, Fp8Format::e5m2>(ctx, x, straight, transposed);
  });
}

}  // namespace hyperslab::ops::cuda
