// SPDX-License-Identifier: Apache-2.0
// FP8 values of a matrix alone, and the amax of all of it, go through memory from
// beginning to end. Work on columns goes by tiles (fp8_tiles.cuh).
#include "fp8_tiles.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace fp8;

constexpr const char* kName = "fp8_quantize";
constexpr int kAtOnce = 4;  // loads of a thread that are in progress together

/// The amax of all values; zero before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fp8_amax_of_all_kernel(const T* x, Dim vectors, float* amax) {
  overlap();
  wait_for_earlier();
  const Dim stride = static_cast<Dim>(gridDim.x) * kThreads;
  unsigned most = 0;
  for (Dim first = static_cast<Dim>(blockIdx.x) * kThreads + threadIdx.x; first < vectors;
       first += stride * kAtOnce) {
    Vec<T, kSide> found[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const Dim at = first + i * stride;
      found[i] = load_raw<kSide>(x + (at < vectors ? at : first) * kSide);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kSide; ++k) most = max(most, magnitude_bits(to_real(found[i].at[k])));
    }
  }
  raise_amax<kThreads>(amax, most);
}

/// Amaxes of rows and of columns, one of which may be absent. Zero before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fp8_amax_kernel(Values<T> values, float* of_rows, float* of_columns) {
  __shared__ unsigned shared[kTile];
  overlap();
  if (threadIdx.x < kTile) shared[threadIdx.x] = 0;
  __syncthreads();
  wait_for_earlier();
  const int unit = static_cast<int>(threadIdx.x % kUnits);
  Vec<T, kSide> found[kSide];
  values.all(found);
  unsigned columns[kSide] = {};
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    unsigned of_row = 0;
#pragma unroll
    for (int k = 0; k < kSide; ++k) {
      const unsigned bits = magnitude_bits(to_real(found[i].at[k]));
      of_row = max(of_row, bits);
      columns[k] = max(columns[k], bits);
    }
    if (of_rows == nullptr) continue;
#pragma unroll
    for (int offset = kUnits / 2; offset > 0; offset /= 2) {
      of_row = max(of_row, __shfl_xor_sync(kWholeWarp, of_row, offset));
    }
    const Dim row = values.first_row() + i;
    if (unit == 0 && row < values.rows) raise(of_rows + row, of_row);
  }
  if (of_columns != nullptr) {
#pragma unroll
    for (int k = 0; k < kSide; ++k) atomicMax(shared + unit * kSide + k, columns[k]);
    __syncthreads();
    const Dim column = static_cast<Dim>(blockIdx.x) * kTile + threadIdx.x;
    if (threadIdx.x < kTile && column < values.columns) {
      raise(of_columns + column, shared[threadIdx.x]);
    }
  }
}

/// FP8 values that are written; null: none.
struct Fp8Values {
  std::uint8_t* values;
  const float* amax;
  float* scales;
  Dim width;  ///< FP8 values in a row
  bool per_row;
};

template <Fp8Format kFormat>
__device__ float inverse(const Fp8Values& to, Dim row) {
  return fp8_inverse(to.amax[to.per_row ? row : 0], largest_value(kFormat));
}

template <Fp8Format kFormat>
__device__ void write_scale(const Fp8Values& to, Dim row) {
  to.scales[row] = fp8_scale(to.amax[row], largest_value(kFormat));
}

/// The FP8 values of x alone; a thread takes 16 values at once.
template <class T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    fp8_quantize_straight_kernel(const T* x, Dim units, Fp8Values to) {
  overlap();
  wait_for_earlier();
  const Dim units_of_row = to.width / (2 * kSide);
  const Dim stride = static_cast<Dim>(gridDim.x) * kThreads;
  for (Dim at = static_cast<Dim>(blockIdx.x) * kThreads + threadIdx.x; at < units; at += stride) {
    const Dim row = to.per_row ? at / units_of_row : 0;
    const Vec<T, 2 * kSide> found = load_raw<2 * kSide>(x + at * 2 * kSide);
    const float of_row = inverse<kFormat>(to, row);
    float inverses[kSide];
#pragma unroll
    for (float& each : inverses) each = of_row;
    Eight halves[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float reals[kSide];
#pragma unroll
      for (int k = 0; k < kSide; ++k) reals[k] = to_real(found.at[half * kSide + k]);
      halves[half] = encode<kFormat>(reals, inverses);
    }
    *reinterpret_cast<uint4*>(to.values + at * 2 * kSide) = {halves[0].x, halves[0].y, halves[1].x,
                                                             halves[1].y};
    if (to.per_row ? at % units_of_row == 0 : at == 0) write_scale<kFormat>(to, row);
  }
}

/// The factor of values, found once for all threads of a block.
template <Fp8Format kFormat, bool kOwnScales>
class Inverses {
 public:
  /// All threads; a barrier follows. `straight` may have no FP8 values.
  __device__ void find(const Fp8Values& straight, const Fp8Values& transposed, Dim rows,
                       Dim columns) {
    const auto thread = static_cast<int>(threadIdx.x);
    if constexpr (kOwnScales) {
      const bool of_row = thread < kTile;
      const Dim at = static_cast<Dim>(of_row ? blockIdx.y : blockIdx.x) * kTile + thread % kTile;
      const float* const amax = of_row ? straight.amax : transposed.amax;
      if (amax != nullptr && at < (of_row ? rows : columns)) {
        values_[thread] = fp8_inverse(amax[at], largest_value(kFormat));
      }
    } else if (thread == 0) {
      values_[0] = inverse<kFormat>(transposed, 0);
    }
  }
  [[nodiscard]] __device__ float of_row(int row) const { return values_[kOwnScales ? row : 0]; }
  [[nodiscard]] __device__ float of_column(int column) const { return values_[kTile + column]; }

 private:
  static_assert(kThreads == 2 * kTile);
  float values_[kOwnScales ? 2 * kTile : 1];
};

/// The FP8 values of the transpose, and of the matrix unless they are absent. kOwnScales: the
/// transpose has other scales, so that values are rounded for it apart; else both have the
/// transpose's.
template <class T, Fp8Format kFormat, bool kOwnScales>
__global__ void __launch_bounds__(kThreads, kOwnScales ? 2 : 3)
    fp8_quantize_kernel(Values<T> values, Fp8Values straight, Fp8Values transposed) {
  __shared__ TurnedValues shared;
  __shared__ Inverses<kFormat, kOwnScales> inverses;
  overlap();
  wait_for_earlier();
  const int count = values.count();
  const int unit = static_cast<int>(threadIdx.x % kUnits);
  const int row_unit = static_cast<int>(threadIdx.x / kUnits);
  const Dim row = values.first_row();
  const Dim column = values.first_column();
  const bool writes = straight.values != nullptr;
  Vec<T, kSide> found[kSide];
  values.all(found);
  inverses.find(straight, transposed, values.rows, values.columns);
  __syncthreads();
  float of_columns[kSide];
#pragma unroll
  for (int k = 0; k < kSide; ++k) {
    of_columns[k] = kOwnScales ? inverses.of_column(unit * kSide + k) : inverses.of_row(0);
  }
  Eight rows[kSide];
  std::uint8_t* to_straight = straight.values + row * straight.width + column;
#pragma unroll
  for (int i = 0; i < kSide; ++i, to_straight += straight.width) {
    float reals[kSide];
#pragma unroll
    for (int k = 0; k < kSide; ++k) reals[k] = to_real(found[i].at[k]);
    const bool there = i < count;
    const Eight turned = encode<kFormat>(reals, of_columns);
    rows[i] = {there ? turned.x : 0U, there ? turned.y : 0U};
    Eight kept = turned;
    if (kOwnScales && writes) {
      float of_row[kSide];
#pragma unroll
      for (float& each : of_row) each = inverses.of_row(row_unit * kSide + i);
      kept = encode<kFormat>(reals, of_row);
    }
    if (writes && there) {
      *reinterpret_cast<Eight*>(to_straight) = kept;
    }
  }
  if (writes && blockIdx.x == 0) {
    const Dim first = static_cast<Dim>(blockIdx.y) * kTile + threadIdx.x;
    if (straight.per_row ? threadIdx.x < kTile && first < values.rows : first == 0) {
      write_scale<kFormat>(straight, first);
    }
  }
  if (blockIdx.y == 0) {
    const Dim first = static_cast<Dim>(blockIdx.x) * kTile + threadIdx.x;
    if (transposed.per_row ? threadIdx.x < kTile && first < values.columns : first == 0) {
      write_scale<kFormat>(transposed, first);
    }
  }
  write_transposed(rows, shared, values.columns, transposed.width, transposed.values);
}

/// The transpose of FP8 values, whose rows it fills up with zeros.
__global__ void __launch_bounds__(kThreads)
    fp8_transpose_kernel(Values<std::uint8_t> values, Dim width, std::uint8_t* transposed) {
  __shared__ TurnedValues shared;
  overlap();
  wait_for_earlier();
  Vec<std::uint8_t, kSide> found[kSide];
  values.all(found);
  Eight rows[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) rows[i] = *reinterpret_cast<const Eight*>(&found[i]);
  write_transposed(rows, shared, values.columns, width, transposed);
}

struct ScaleOp {
  static constexpr int kWidth = 1;
  const float* amax;
  float* scales;
  float largest_value;
  template <int N>
  __device__ void at(Dim i) const {
    scales[i] = fp8_scale(amax[i], largest_value);
  }
};

Fp8Values fp8_values_of(const Fp8Matrix& matrix) {
  if (!matrix.values) return {};
  return {matrix.values.data<std::uint8_t>(), matrix.amax.data<float>(),
          matrix.scales.data<float>(), matrix.values.shape()[1], matrix.scaling == Fp8Scaling::row};
}

/// Blocks of a kernel whose threads go on to further items.
unsigned blocks_for(Dim items) {
  constexpr Dim kMostBlocks = 4096;
  return static_cast<unsigned>(std::min(kMostBlocks, ceil_divide(items, kThreads)));
}

/// Finds the amax of all `count` values.
template <class T>
void find_amax_of_all(Context& ctx, const char* op, Dim rows, const T* x, Dim count, View amax) {
  clear_amax(ctx, op, amax);
  const Dim vectors = count / kSide;
  const Grid grid = {blocks_for(ceil_divide(vectors, kAtOnce)), kThreads};
  launch_waiting(ctx, op, rows, fp8_amax_of_all_kernel<T>, grid, x, vectors, amax.data<float>());
}

template <class T>
void find_amax(Context& ctx, const Values<T>& values, const Fp8Matrix& straight,
               const Fp8Matrix& transposed) {
  const Fp8Matrix& any = straight.values ? straight : transposed;
  if (any.scaling == Fp8Scaling::tensor) {
    return find_amax_of_all(ctx, kName, values.rows, values.x, values.rows * values.columns,
                            any.amax);
  }
  const Grid grid = {tiles_of(values.rows, values.columns), kThreads};
  clear_amax(ctx, kName, straight.amax);
  clear_amax(ctx, kName, transposed.amax);
  launch_waiting(ctx, kName, values.rows, fp8_amax_kernel<T>, grid, values,
                 optional_data<float>(straight.amax), optional_data<float>(transposed.amax));
}

template <class T, Fp8Format kFormat>
void quantize_as(Context& ctx, const Values<T>& values, const Fp8Values& straight,
                 const Fp8Values& transposed) {
  if (transposed.values == nullptr) {
    const Dim units = values.rows * values.columns / (2 * kSide);
    return launch_waiting(ctx, kName, values.rows, fp8_quantize_straight_kernel<T, kFormat>,
                          {blocks_for(units), kThreads}, values.x, units, straight);
  }
  const Grid grid = {tiles_of(transposed.width, values.columns), kThreads};
  const auto kernel = transposed.per_row ? fp8_quantize_kernel<T, kFormat, true>
                                         : fp8_quantize_kernel<T, kFormat, false>;
  launch_waiting(ctx, kName, values.rows, kernel, grid, values, straight, transposed);
}

}  // namespace

void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Amax amax) {
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  if (x.numel() == 0) return;
  if (columns % kSide != 0 || !aligned(x.raw())) {
    throw Error(ExitCode::internal, "fp8_quantize: rows on a GPU begin at multiples of 16 bytes");
  }
  if (has_groups((straight.values ? straight : transposed).scaling)) {
    return fp8_quantize_groups(ctx, x, straight, transposed);
  }
  const Fp8Values to = fp8_values_of(straight);
  Fp8Values to_transposed = fp8_values_of(transposed);
  // One amax serves both.
  const bool is_tensor = (straight.values ? straight : transposed).scaling == Fp8Scaling::tensor;
  if (is_tensor && straight.values) to_transposed.amax = to.amax;
  with_element(x.dtype(), kName, [&, rows = rows, columns = columns]<class T>(T) {
    const Values<T> values = {x.data<T>(), rows, columns};
    if (amax == Fp8Amax::found) find_amax<T>(ctx, values, straight, transposed);
    if ((straight.values ? straight : transposed).format == Fp8Format::e4m3) {
      quantize_as<T, Fp8Format::e4m3>(ctx, values, to, to_transposed);
    } else {
      quantize_as<T, Fp8Format::e5m2>(ctx, values, to, to_transposed);
    }
  });
}

void fp8_amax(Context& ctx, CView x, View amax) {
  constexpr const char* kOp = "fp8_amax";
  if (x.numel() == 0) return clear_amax(ctx, kOp, amax);
  if (!aligned(x.raw())) {
    throw Error(ExitCode::internal, "fp8_amax: values on a GPU begin at multiples of 16 bytes");
  }
  with_element(x.dtype(), kOp,
               [&]<class T>(T) { find_amax_of_all(ctx, kOp, 1, x.data<T>(), x.numel(), amax); });
}

void fp8_scales(Context& ctx, Fp8Format format, CView amax, View scales) {
  const ScaleOp op = {amax.data<float>(), scales.data<float>(), largest_value(format)};
  for_each(ctx, "fp8_scales", kOneBlock, amax.numel(), false, op);
}

void fp8_transpose(Context& ctx, CView values, View transposed) {
  const auto [rows, columns] = values.dims<2>("fp8_transpose values");
  if (values.numel() == 0) return;
  const Dim width = transposed.shape()[1];
  const Values<std::uint8_t> from = {values.data<std::uint8_t>(), rows, columns};
  launch_waiting(ctx, "fp8_transpose", rows, fp8_transpose_kernel,
                 {tiles_of(width, columns), kThreads}, from, width,
                 transposed.data<std::uint8_t>());
}

}  // namespace hyperslab::ops::cuda
