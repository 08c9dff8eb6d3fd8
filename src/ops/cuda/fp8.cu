// SPDX-License-Identifier: Apache-2.0
// Codes of a matrix alone, and the largest magnitude of all of it, go through memory from
// beginning to end. What has to do with columns goes by tiles (fp8_codes.cuh).
#include "fp8_codes.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace fp8;

constexpr const char* kName = "fp8_quantize";
constexpr int kAtOnce = 4;  // loads of a thread that are in progress together

/// The largest magnitude of all values; zero before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fp8_largest_of_all_kernel(const T* x, Dim vectors, float* largest) {
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
  raise_to_most<kThreads>(largest, most);
}

/// Largest magnitudes of rows and of columns, one of which may be absent. Zero before.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fp8_largest_kernel(Values<T> values, float* of_rows, float* of_columns) {
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

/// Codes that are written; null: none.
struct Codes {
  std::uint8_t* codes;
  const float* largest;
  float* scales;
  Dim width;  ///< codes in a row
  bool per_row;
};

template <Fp8Format kFormat>
__device__ float inverse(const Codes& codes, Dim row) {
  return fp8_inverse(codes.largest[codes.per_row ? row : 0], largest_value(kFormat));
}

template <Fp8Format kFormat>
__device__ void write_scale(const Codes& codes, Dim row) {
  codes.scales[row] = fp8_scale(codes.largest[row], largest_value(kFormat));
}

/// The codes of x alone; a thread takes 16 values at once.
template <class T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    fp8_quantize_straight_kernel(const T* x, Dim units, Codes codes) {
  overlap();
  wait_for_earlier();
  const Dim units_of_row = codes.width / (2 * kSide);
  const Dim stride = static_cast<Dim>(gridDim.x) * kThreads;
  for (Dim at = static_cast<Dim>(blockIdx.x) * kThreads + threadIdx.x; at < units; at += stride) {
    const Dim row = codes.per_row ? at / units_of_row : 0;
    const Vec<T, 2 * kSide> found = load_raw<2 * kSide>(x + at * 2 * kSide);
    const float of_row = inverse<kFormat>(codes, row);
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
    *reinterpret_cast<uint4*>(codes.codes + at * 2 * kSide) = {halves[0].x, halves[0].y,
                                                               halves[1].x, halves[1].y};
    if (codes.per_row ? at % units_of_row == 0 : at == 0) write_scale<kFormat>(codes, row);
  }
}

/// The factor of values, found once for all threads of a block.
template <Fp8Format kFormat, bool kOwnScales>
class Inverses {
 public:
  /// All threads; a barrier follows. `straight` may have no codes.
  __device__ void find(const Codes& straight, const Codes& transposed, Dim rows, Dim columns) {
    const auto thread = static_cast<int>(threadIdx.x);
    if constexpr (kOwnScales) {
      const bool of_row = thread < kTile;
      const Dim at = static_cast<Dim>(of_row ? blockIdx.y : blockIdx.x) * kTile + thread % kTile;
      const float* const largest = of_row ? straight.largest : transposed.largest;
      if (largest != nullptr && at < (of_row ? rows : columns)) {
        values_[thread] = fp8_inverse(largest[at], largest_value(kFormat));
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

/// The codes of the transpose, and of the matrix unless they are absent. kOwnScales: the transpose
/// has other scales, so that values are rounded for it apart; else both have the transpose's.
template <class T, Fp8Format kFormat, bool kOwnScales>
__global__ void __launch_bounds__(kThreads, kOwnScales ? 2 : 3)
    fp8_quantize_kernel(Values<T> values, Codes straight, Codes transposed) {
  __shared__ TurnedCodes shared;
  __shared__ Inverses<kFormat, kOwnScales> inverses;
  overlap();
  wait_for_earlier();
  const int count = values.count();
  const int unit = static_cast<int>(threadIdx.x % kUnits);
  const int row_unit = static_cast<int>(threadIdx.x / kUnits);
  const Dim row = values.first_row();
  const Dim column = values.first_column();
  const bool writes = straight.codes != nullptr;
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
  std::uint8_t* to_straight = straight.codes + row * straight.width + column;
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
  write_transposed(rows, shared, values.columns, transposed.width, transposed.codes);
}

/// The transpose of codes, whose rows it fills up with zeros.
__global__ void __launch_bounds__(kThreads)
    fp8_transpose_kernel(Values<std::uint8_t> codes, Dim width, std::uint8_t* transposed) {
  __shared__ TurnedCodes shared;
  overlap();
  wait_for_earlier();
  Vec<std::uint8_t, kSide> found[kSide];
  codes.all(found);
  Eight rows[kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) rows[i] = *reinterpret_cast<const Eight*>(&found[i]);
  write_transposed(rows, shared, codes.columns, width, transposed);
}

struct ScaleOp {
  static constexpr int kWidth = 1;
  const float* largest;
  float* scales;
  float largest_value;
  template <int N>
  __device__ void at(Dim i) const {
    scales[i] = fp8_scale(largest[i], largest_value);
  }
};

Codes codes_of(const Fp8Matrix& matrix) {
  if (!matrix.codes) return {};
  return {matrix.codes.data<std::uint8_t>(), matrix.largest.data<float>(),
          matrix.scales.data<float>(), matrix.codes.shape()[1], matrix.scaling == Fp8Scaling::row};
}

/// Blocks of a kernel whose threads go on to further items.
unsigned blocks_for(Dim items) {
  constexpr Dim kMostBlocks = 4096;
  return static_cast<unsigned>(std::min(kMostBlocks, ceil_divide(items, kThreads)));
}

/// Finds the largest magnitude of all `count` values.
template <class T>
void find_largest_of_all(Context& ctx, const char* op, Dim rows, const T* x, Dim count,
                         View largest) {
  clear_largest(ctx, op, largest);
  const Dim vectors = count / kSide;
  const Grid grid = {blocks_for(ceil_divide(vectors, kAtOnce)), kThreads};
  launch_waiting(ctx, op, rows, fp8_largest_of_all_kernel<T>, grid, x, vectors,
                 largest.data<float>());
}

template <class T>
void find_largest(Context& ctx, const Values<T>& values, const Fp8Matrix& straight,
                  const Fp8Matrix& transposed) {
  const Fp8Matrix& any = straight.codes ? straight : transposed;
  if (any.scaling == Fp8Scaling::tensor) {
    return find_largest_of_all(ctx, kName, values.rows, values.x, values.rows * values.columns,
                               any.largest);
  }
  const Grid grid = {tiles_of(values.rows, values.columns), kThreads};
  clear_largest(ctx, kName, straight.largest);
  clear_largest(ctx, kName, transposed.largest);
  launch_waiting(ctx, kName, values.rows, fp8_largest_kernel<T>, grid, values,
                 optional_data<float>(straight.largest), optional_data<float>(transposed.largest));
}

template <class T, Fp8Format kFormat>
void quantize_as(Context& ctx, const Values<T>& values, const Codes& straight,
                 const Codes& transposed) {
  if (transposed.codes == nullptr) {
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
                  Fp8Largest largest) {
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  if (x.numel() == 0) return;
  if (columns % kSide != 0 || !aligned(x.raw())) {
    throw Error(ExitCode::internal, "fp8_quantize: rows on a GPU begin at multiples of 16 bytes");
  }
  if (has_groups((straight.codes ? straight : transposed).scaling)) {
    return fp8_quantize_groups(ctx, x, straight, transposed);
  }
  const Codes to = codes_of(straight);
  Codes to_transposed = codes_of(transposed);
  // One magnitude serves both.
  const bool is_tensor = (straight.codes ? straight : transposed).scaling == Fp8Scaling::tensor;
  if (is_tensor && straight.codes) to_transposed.largest = to.largest;
  with_element(x.dtype(), kName, [&, rows = rows, columns = columns]<class T>(T) {
    const Values<T> values = {x.data<T>(), rows, columns};
    if (largest == Fp8Largest::found) find_largest<T>(ctx, values, straight, transposed);
    if ((straight.codes ? straight : transposed).format == Fp8Format::e4m3) {
      quantize_as<T, Fp8Format::e4m3>(ctx, values, to, to_transposed);
    } else {
      quantize_as<T, Fp8Format::e5m2>(ctx, values, to, to_transposed);
    }
  });
}

void fp8_largest(Context& ctx, CView x, View largest) {
  constexpr const char* kOp = "fp8_largest";
  if (x.numel() == 0) return clear_largest(ctx, kOp, largest);
  if (!aligned(x.raw())) {
    throw Error(ExitCode::internal, "fp8_largest: values on a GPU begin at multiples of 16 bytes");
  }
  with_element(x.dtype(), kOp, [&]<class T>(T) {
    find_largest_of_all(ctx, kOp, 1, x.data<T>(), x.numel(), largest);
  });
}

void fp8_scales(Context& ctx, Fp8Format format, CView largest, View scales) {
  const ScaleOp op = {largest.data<float>(), scales.data<float>(), largest_value(format)};
  for_each(ctx, "fp8_scales", kOneBlock, largest.numel(), false, op);
}

void fp8_transpose(Context& ctx, CView codes, View transposed) {
  const auto [rows, columns] = codes.dims<2>("fp8_transpose codes");
  if (codes.numel() == 0) return;
  const Dim width = transposed.shape()[1];
  const Values<std::uint8_t> values = {codes.data<std::uint8_t>(), rows, columns};
  launch_waiting(ctx, "fp8_transpose", rows, fp8_transpose_kernel,
                 {tiles_of(width, columns), kThreads}, values, width,
                 transposed.data<std::uint8_t>());
}

}  // namespace hyperslab::ops::cuda
