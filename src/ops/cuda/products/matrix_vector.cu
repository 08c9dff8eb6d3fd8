// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "checks.hpp"
#include "cuda/tools/mma.cuh"
#include "matrix_vector.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;  // warps that share the columns of one tile
constexpr int kTile = 16;  // rows of the weights in it
constexpr int kXRows = 8;  // rows of x that a tile multiplies
constexpr int kLoads = 4;  // a lane has on their way from each of its two rows
constexpr int kThreads = 32 * kWarps;
constexpr Dim kMostInY = 65535;  // blocks in the second dimension of a grid
static_assert(kXRows == kMatrixVectorRows);

template <class T>
struct FewRows {
  const T* x;
  const std::uint8_t* weight;
  const void* scales;
  const float* block_scales;
  const T* bias;
  T* y;
  int rows;
  int group_log2;
  Dim M;
  Dim K;
  NormalFloat table;
};

/// The position of a lane in the layout of tools/mma.cuh.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int index = static_cast<int>(threadIdx.x) % 32;
  int g = index / 4;
  int t = index % 4;
};

/// The row of the tile and the row of x of element i of a block's products, lane by lane four.
struct Place {
  int m;
  int n;
};
__device__ Place place_of(int i) {
  const int lane = i / 4;
  return {lane / 4 + i % 4 / 2 * 8, lane % 4 * 2 + i % 2};
}

/// Thread i < 128 gets the sum over the warps of element i, in their order.
template <class Sum>
__device__ Sum sum_of_warps(const Sum (&mine)[4], Sum (&partial)[kWarps][32 * 4]) {
  const Lane lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) partial[lane.warp][lane.index * 4 + i] = mine[i];
  __syncthreads();
  Sum total = 0;
  if (threadIdx.x < 128) {
    for (int warp = 0; warp < kWarps; ++warp) total += partial[warp][threadIdx.x];
  }
  return total;
}

/// The scale of group `index` of a grouped format: with a table as nf4 stores it, else in f16.
template <class Weights>
__device__ float group_scale(const void* scales, const float* block_scales, Dim index) {
  if constexpr (Weights::kTabled) {
    return __fmul_rn(static_cast<float>(static_cast<const std::uint8_t*>(scales)[index]),
                     block_scales[index / kScaleBlock]);
  } else {
    return to_real(static_cast<const f16*>(scales)[index]);
  }
}

/// Words of x, of the columns that a lane holds.
template <class Weights, class T>
__device__ void load_x(const T* from, bool present, std::uint32_t (&pairs)[Weights::kCodes / 2]) {
#pragma unroll
  for (int i = 0; i < Weights::kCodes / 2; i += 4) {
    uint4 words = {0, 0, 0, 0};
    if (present) words = reinterpret_cast<const uint4*>(from)[i / 4];
    memcpy(pairs + i, &words, sizeof words);
  }
  Weights::arrange(pairs);
}

/// Pairs of bytes as pairs of NF4's values.
template <class T>
__device__ void fill_table(const NormalFloat& values, std::uint32_t* table) {
  const T low = from_real<T>(values.values[threadIdx.x & 15]);
  const T high = from_real<T>(values.values[threadIdx.x >> 4]);
  table[threadIdx.x] = low.bits | static_cast<std::uint32_t>(high.bits) << 16;
}

/// One tile's step: kLoads chunks of four lanes' columns from column `first` on.
template <class Weights, class T>
struct Step {
  static constexpr int kChunk = 4 * Weights::kCodes;
  static constexpr int kColumns = kLoads * kChunk;
  std::uint32_t words[kLoads][2][Weights::kWords];
  float scales[kLoads][2];

  __device__ void load(const FewRows<T>& call, Dim row, Dim first) {
    const Lane lane;
    const Dim row_bytes = call.K / Weights::kCodes * Weights::kWords * 4;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * kChunk + lane.t * Weights::kCodes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Dim m = row + 8 * half;
        const bool present = k < call.K && m < call.M;
#pragma unroll
        for (int i = 0; i < Weights::kWords; ++i) words[u][half][i] = 0;
        if (present) {
          load_stream(call.weight + m * row_bytes + k / Weights::kCodes * Weights::kWords * 4,
                      words[u][half]);
        }
        if constexpr (Weights::kGrouped) {
          scales[u][half] = present ? group_scale<Weights>(call.scales, call.block_scales,
                                                           (m * call.K + k) >> call.group_log2)
                                    : 0.0F;
        }
      }
    }
  }

  __device__ void multiply(const FewRows<T>& call, Dim first, const std::uint32_t* table,
                           float (&sum)[4]) const {
    constexpr int kPairs = Weights::kCodes / 2;
    const Lane lane;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * kChunk + lane.t * Weights::kCodes;
      std::uint32_t x[kPairs];
      load_x<Weights>(call.x + lane.g * call.K + k, lane.g < call.rows && k < call.K, x);
      std::uint32_t low[kPairs];
      std::uint32_t high[kPairs];
      Weights::widen(words[u][0], low, table);
      Weights::widen(words[u][1], high, table);
      float product[4] = {};
#pragma unroll
      for (int i = 0; i < kPairs; i += 2) {
        const std::uint32_t a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
        multiply_add<T>(Weights::kGrouped ? product : sum, a, x[i], x[i + 1]);
      }
      if constexpr (Weights::kGrouped) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += scales[u][i / 2] * product[i];
      }
    }
  }
};

/// A block multiplies kTile rows of the weights by all rows of x; its warps take steps in turn. The
/// first step's weights are on their way before earlier kernels end.
template <class Weights, bool kRowScales, class T>
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(FewRows<T> call) {
  __shared__ float partial[kWarps][32 * 4];
  __shared__ std::uint32_t table[Weights::kTabled ? 256 : 1];
  overlap();
  if constexpr (Weights::kTabled) {
    fill_table<T>(call.table, table);
    __syncthreads();
  }
  const Lane lane;
  const Dim first_row = static_cast<Dim>(blockIdx.x) * kTile;
  using Steps = Step<Weights, T>;
  constexpr Dim kStride = kWarps * Steps::kColumns;
  float sum[4] = {};
  Dim k = lane.warp * Steps::kColumns;
  Steps step;
  step.load(call, first_row + lane.g, k);
  wait_for_earlier();
  while (k < call.K) {
    step.multiply(call, k, table, sum);
    k += kStride;
    if (k < call.K) step.load(call, first_row + lane.g, k);
  }
  float total = sum_of_warps(sum, partial);
  const Place place = place_of(static_cast<int>(threadIdx.x));
  const Dim m = first_row + place.m;
  if (threadIdx.x >= 128 || m >= call.M || place.n >= call.rows) return;
  if constexpr (kRowScales) total *= static_cast<const float*>(call.scales)[m];
  if (call.bias != nullptr) total += to_real(call.bias[m]);
  call.y[place.n * call.M + m] = from_real<T>(total);
}

template <class Weights, bool kRowScales, class T>
void launch_few_rows(Context& ctx, const char* name, const FewRows<T>& call) {
  if (call.M == 0 || call.rows == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_divide(call.M, kTile));
  launch_overlapping(ctx, name, few_rows_kernel<Weights, kRowScales, T>, {blocks, kThreads}, call);
}

template <class T>
FewRows<T> few_rows(CView x, const CQuantizedMatrix& weight, CView bias, View y) {
  const Dim K = weight.shape[1];
  return {x.data<T>(),
          static_cast<const std::uint8_t*>(weight.codes.raw()),
          weight.scales.raw(),
          optional_data<float>(weight.block_scales),
          optional_data<T>(bias),
          y.data<T>(),
          static_cast<int>(leading(x.shape())),
          std::countr_zero(static_cast<std::uint64_t>(weight.group)),
          weight.shape[0],
          K,
          weight.format == WeightFormat::nf4 ? normal_float() : NormalFloat{}};
}

/// Any sizes and addresses: a warp for each row of the weights.
template <WeightFormat kFormat, class T>
__global__ void __launch_bounds__(kThreads)
    any_rows_kernel(FewRows<T> call, QuantizedElements<kFormat> weight) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = weight.table.values[threadIdx.x];
  __syncthreads();
  const Dim m = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (m >= call.M) return;
  float sum[kXRows] = {};
  for (Dim k = lane; k < call.K; k += 32) {
    const Dim i = m * call.K + k;
    const float value = weight.code_at(i, values) * weight.scale_of(i / weight.group);
#pragma unroll
    for (int n = 0; n < kXRows; ++n) {
      if (n < call.rows) sum[n] += value * to_real(call.x[n * call.K + k]);
    }
  }
#pragma unroll
  for (int n = 0; n < kXRows; ++n) {
    const float total = warp_sum(sum[n]);
    if (lane != 0 || n >= call.rows) continue;
    const float bias = call.bias != nullptr ? to_real(call.bias[m]) : 0.0F;
    call.y[n * call.M + m] = from_real<T>(total + bias);
  }
}

template <class T>
struct Int8Product {
  Int8Rows x;
  const std::uint8_t* weight;
  const float* scales;
  const T* bias;
  T* y;
  Dim M;
  Dim K;

  __device__ void finish(Dim n, Dim m, int sum) const {
    y[n * M + m] = scaled_sum(sum, x.scales[n], scales[m], bias == nullptr ? nullptr : bias + m);
  }
};

/// As few_rows_kernel, for eight rows of x; 16 codes are one load. Only the weights are read before
/// earlier kernels have ended.
template <class T>
__global__ void __launch_bounds__(kThreads, 2) int8_kernel(Int8Product<T> call) {
  constexpr Dim kStep = 64 * kLoads;
  __shared__ int partial[kWarps][32 * 4];
  overlap();
  const Lane lane;
  const Dim row = static_cast<Dim>(blockIdx.x) * kTile + lane.g;
  const Dim x_row = static_cast<Dim>(blockIdx.y) * kXRows + lane.g;
  int sum[4] = {};
  for (Dim first = lane.warp * kStep; first < call.K; first += kWarps * kStep) {
    std::uint32_t words[kLoads][3][4] = {};
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * 64 + lane.t * 16;
      if (k >= call.K) continue;
      if (row < call.M) load_stream(call.weight + row * call.K + k, words[u][0]);
      if (row + 8 < call.M) load_stream(call.weight + (row + 8) * call.K + k, words[u][1]);
    }
    wait_for_earlier();
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * 64 + lane.t * 16;
      if (k >= call.K || x_row >= call.x.rows) continue;
      const auto codes = load_raw<16>(call.x.codes + x_row * call.K + k);
      memcpy(words[u][2], &codes, sizeof codes);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t a[4] = {words[u][0][i], words[u][1][i], words[u][0][i + 1],
                                    words[u][1][i + 1]};
        multiply_add(sum, a, words[u][2][i], words[u][2][i + 1]);
      }
    }
  }
  wait_for_earlier();  // also warps without columns
  const int total = sum_of_warps(sum, partial);
  const Place place = place_of(static_cast<int>(threadIdx.x));
  const Dim m = static_cast<Dim>(blockIdx.x) * kTile + place.m;
  const Dim n = static_cast<Dim>(blockIdx.y) * kXRows + place.n;
  if (threadIdx.x < 128 && m < call.M && n < call.x.rows) call.finish(n, m, total);
}

/// Any sizes and addresses: a warp for each product.
template <class T>
__global__ void __launch_bounds__(kThreads) any_int8_kernel(Int8Product<T> call) {
  const Dim m = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (m >= call.M) return;
  for (Dim n = blockIdx.y; n < call.x.rows; n += gridDim.y) {
    int sum = 0;
    for (Dim k = threadIdx.x % 32; k < call.K; k += 32) {
      sum += static_cast<std::int8_t>(call.weight[m * call.K + k]) *
             static_cast<std::int8_t>(call.x.codes[n * call.K + k]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) call.finish(n, m, sum);
  }
}

/// True if the tensor cores' kernels take these weights: 16-bit x, and groups of whole chunks.
template <class T>
bool suits(const FewRows<T>& call, const CQuantizedMatrix& weight) {
  if (sizeof(T) != 2 || !aligned(call.x, call.weight)) return false;
  if (weight.format == WeightFormat::int8) return call.K % 16 == 0;
  return weight.group >= 32 && std::has_single_bit(static_cast<std::uint64_t>(weight.group));
}

template <class T>
void launch_quantized(Context& ctx, const FewRows<T>& call, const CQuantizedMatrix& weight) {
  constexpr const char* kName = "quantized_linear_forward";
  if (weight.format == WeightFormat::int8) {
    return launch_few_rows<Int8Weights<T>, true>(ctx, kName, call);
  }
  if (weight.format == WeightFormat::nf4) {
    return launch_few_rows<NormalWeights<T>, false>(ctx, kName, call);
  }
  if (weight.group >= 128) return launch_few_rows<Int4Weights<T, 4>, false>(ctx, kName, call);
  if (weight.group == 64) return launch_few_rows<Int4Weights<T, 2>, false>(ctx, kName, call);
  launch_few_rows<Int4Weights<T, 1>, false>(ctx, kName, call);
}

}  // namespace

void linear_by_few_rows(Context& ctx, CView x, CView weight, CView bias, Accumulate /*accumulate*/,
                        View y) {
  const Dim K = weight.shape()[1];
  with_element(x.dtype(), "linear_forward", [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const CQuantizedMatrix whole = {WeightFormat::int8, K, weight.shape(), weight, {}, {}};
      launch_few_rows<PlainWeights<T>, false>(ctx, "linear_forward",
                                              few_rows<T>(x, whole, bias, y));
    }
  });
}

void quantized_matrix_vector(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                             View y) {
  if (suits_quantized_row(x, weight, false)) return quantized_row(ctx, x, weight, bias, {y});
  with_element(x.dtype(), "quantized_linear_forward", [&]<class T>(T) {
    const FewRows<T> call = few_rows<T>(x, weight, bias, y);
    if constexpr (sizeof(T) == 2) {
      if (suits(call, weight)) return launch_quantized(ctx, call, weight);
    }
    if (call.M == 0 || call.rows == 0) return;
    with_format(weight.format, [&]<WeightFormat kFormat>() {
      const auto blocks = static_cast<unsigned>(ceil_divide(call.M, kWarps));
      any_rows_kernel<<<blocks, kThreads, 0, ctx.stream().cuda()>>>(call,
                                                                    elements_of<kFormat>(weight));
      check_launch("quantized_linear_forward");
    });
  });
}

void int8_matrix_vector(Context& ctx, const Int8Rows& x, const CQuantizedMatrix& weight, CView bias,
                        View y) {
  const auto [M, K] = std::pair{weight.shape[0], weight.shape[1]};
  with_element(y.dtype(), "quantized_linear_forward", [&, M = M, K = K]<class T>(T) {
    const Int8Product<T> call = {x,
                                 weight.codes.data<std::uint8_t>(),
                                 weight.scales.data<float>(),
                                 optional_data<T>(bias),
                                 y.data<T>(),
                                 M,
                                 K};
    const Dim tiles = ceil_divide(x.rows, kXRows);
    if (K % 16 == 0 && aligned(call.weight, x.codes) && tiles <= kMostInY) {
      const dim3 blocks(static_cast<unsigned>(ceil_divide(M, kTile)), static_cast<unsigned>(tiles));
      launch_overlapping(ctx, "quantized_linear_forward", int8_kernel<T>, {blocks, kThreads}, call);
    } else {
      const dim3 blocks(static_cast<unsigned>(ceil_divide(M, kWarps)),
                        static_cast<unsigned>(std::min(x.rows, kMostInY)));
      any_int8_kernel<<<blocks, kThreads, 0, ctx.stream().cuda()>>>(call);
      check_launch("quantized_linear_forward");
    }
  });
}

}  // namespace hyperslab::ops::cuda
