// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "../checks.hpp"
#include "kernels_mma.cuh"
#include "matrix_vector.hpp"

// One row of x by int8 or int4 weights, which never become floating-point numbers: x becomes
// integers of 16 bits, with a scale for the columns of each lane, and the tensor cores multiply the
// codes by its upper and its lower bytes. Of mma.m16n8k32's eight columns, two belong to each of
// the four lanes that share a row: the upper and the lower bytes of this lane's own x, zero for the
// other lanes. So each lane gets the sum over its own columns alone, exactly, and scales it; groups
// may be as small as the 32 codes of int4 that a lane loads at once.
//
// For 32 bytes of weights a lane issues about 45 (int8) or 75 (int4) instructions. A multiprocessor
// issues 128 a clock and takes in 19 bytes of memory: they use a fifth to a third of it.

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;     // that share the columns of one tile
constexpr int kTile = 16;     // rows of the weights in it
constexpr int kLoads = 2;     // a lane has on their way, twice, from each of its two rows
constexpr int kResident = 3;  // blocks on a multiprocessor
constexpr int kThreads = 32 * kWarps;
constexpr float kLargest = 127 * 256;           // of the integers that x becomes
constexpr float kSmallest = 1e-30F;             // below it x counts as zero
constexpr std::size_t kMostShared = 46 * 1024;  // with what is static below 48 KiB

/// Codes in 16 bytes; and whether each group has a scale, else each row.
struct Int8Codes {
  static constexpr int kCodes = 16;
  static constexpr bool kGrouped = false;
};
struct Int4Codes {
  static constexpr int kCodes = 32;
  static constexpr bool kGrouped = true;
};

template <class T>
struct RowProduct {
  const T* x;
  const std::uint8_t* weight;
  const void* scales;
  const T* bias;
  T* y;
  int group_log2;
  Dim M;
  Dim K;
};

/// Of kCodes columns of x: its scale, and what its codes' zero of 8 adds to a sum.
struct Span {
  float scale;
  int zero;
};

/// x in shared memory: for every span the upper bytes of its columns, then the lower ones.
struct FixedRow {
  std::uint8_t* bytes;
  Span* spans;
};

struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;
  int t = static_cast<int>(threadIdx.x) % 4;
};

/// Eight integers as bytes: upper[0] and [1], lower[0] and [1], in the order in which codes come
/// out of their words: as they are, or those of even columns first.
template <class Format>
__device__ void split(const int (&fixed)[8], std::uint32_t (&upper)[2], std::uint32_t (&lower)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int word = Format::kGrouped ? i % 2 : i / 4;
    const int shift = 8 * (Format::kGrouped ? i / 2 : i % 4);
    const int low = static_cast<std::int8_t>(fixed[i] & 255);
    upper[word] |= static_cast<std::uint32_t>((fixed[i] - low) >> 8 & 255) << shift;
    lower[word] |= static_cast<std::uint32_t>(low & 255) << shift;
  }
}

/// The largest magnitude of a team's columns, and not-a-number if one of them is infinite or not a
/// number, else zero.
struct Peak {
  float top;
  float poison;
};
template <int kTeam>
__device__ Peak peak_of(const float (&value)[8]) {
  Peak peak = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    peak.top = fmaxf(peak.top, fabsf(value[i]));
    peak.poison += 0.0F * value[i];
  }
#pragma unroll
  for (int offset = 1; offset < kTeam; offset *= 2) {
    peak.top = fmaxf(peak.top, __shfl_xor_sync(0xFFFFFFFFU, peak.top, offset));
    peak.poison += __shfl_xor_sync(0xFFFFFFFFU, peak.poison, offset);
  }
  return peak;
}

/// The whole block turns x into integers; each thread eight columns at a time.
template <class Format, class T>
__device__ void fix_row(const T* x, Dim K, const FixedRow& row) {
  constexpr int kCodes = Format::kCodes;
  constexpr int kTeam = kCodes / 8;  // threads of a span
  const Dim vectors = K / 8;
  for (Dim first = 0; first < vectors; first += kThreads) {
    const Dim v = first + threadIdx.x;
    float value[8] = {};
    if (v < vectors) load<8>(x + v * 8, value);
    const auto [top, poison] = peak_of<kTeam>(value);
    const float inverse = top > kSmallest ? kLargest / top : 0.0F;
    int fixed[8];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      fixed[i] = __float2int_rn(value[i] * inverse);
      sum += fixed[i];
    }
#pragma unroll
    for (int offset = 1; offset < kTeam; offset *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    }
    if (v >= vectors) continue;
    std::uint32_t upper[2] = {};
    std::uint32_t lower[2] = {};
    split<Format>(fixed, upper, lower);
    std::uint8_t* to = row.bytes + v / kTeam * 2 * kCodes + v % kTeam * 8;
    *reinterpret_cast<uint2*>(to) = {upper[0], upper[1]};
    *reinterpret_cast<uint2*>(to + kCodes) = {lower[0], lower[1]};
    if (v % kTeam == 0) {
      row.spans[v / kTeam] = {top / kLargest + poison, Format::kGrouped ? 8 * sum : 0};
    }
  }
}

/// One tile's step: kLoads chunks of four lanes' columns from column `first` on.
template <class Format, class T>
struct Step {
  static constexpr int kCodes = Format::kCodes;
  static constexpr int kChunk = 4 * kCodes;
  static constexpr int kColumns = kLoads * kChunk;
  std::uint32_t words[kLoads][2][4];
  f16 scales[kLoads][2];

  __device__ void load(const RowProduct<T>& call, Dim tile, Dim first) {
    const Lane lane;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * kChunk + lane.t * kCodes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Dim m = tile + lane.g + 8 * half;
#pragma unroll
        for (int i = 0; i < 4; ++i) words[u][half][i] = 0;
        scales[u][half].bits = 0;
        if (k >= call.K || m >= call.M) continue;
        const Dim element = m * call.K + k;
        load_stream(call.weight + element / kCodes * 16, words[u][half]);
        if constexpr (Format::kGrouped) {
          scales[u][half] = static_cast<const f16*>(call.scales)[element >> call.group_log2];
        }
      }
    }
  }

  __device__ void multiply(const FixedRow& x, Dim K, Dim first, float (&sum)[2]) const {
    const Lane lane;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const Dim k = first + u * kChunk + lane.t * kCodes;
      if (first + u * kChunk >= K) return;  // of all lanes
      const Span span = k < K ? x.spans[k / kCodes] : Span{};
      int product[4] = {};
      multiply_codes(x.bytes + 2 * k + lane.g % 2 * kCodes, lane.g / 2 == lane.t && k < K, u,
                     product);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int exact = 256 * product[2 * half] + product[2 * half + 1] - span.zero;
        float scaled = static_cast<float>(exact) * span.scale;
        if constexpr (Format::kGrouped) scaled *= to_real(scales[u][half]);
        sum[half] += scaled;
      }
    }
  }

  /// `own`: bytes of x that this lane holds, zeros for the others.
  __device__ void multiply_codes(const std::uint8_t* from, bool own, int u,
                                 int (&product)[4]) const {
    std::uint32_t x[kCodes / 4];
#pragma unroll
    for (int i = 0; i < kCodes / 4; i += 4) {
      uint4 loaded = {0, 0, 0, 0};
      if (own) loaded = reinterpret_cast<const uint4*>(from)[i / 4];
      x[i] = loaded.x;
      x[i + 1] = loaded.y;
      x[i + 2] = loaded.z;
      x[i + 3] = loaded.w;
    }
    const auto& [low, high] = words[u];
    if constexpr (Format::kGrouped) {
      constexpr std::uint32_t kEven = 0x0F0F0F0FU;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t a[4] = {low[i] & kEven, high[i] & kEven, low[i] >> 4 & kEven,
                                    high[i] >> 4 & kEven};
        multiply_add(product, a, x[2 * i], x[2 * i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const std::uint32_t a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
        multiply_add(product, a, x[i], x[i + 1]);
      }
    }
  }
};

/// The sums of a tile over lanes and then warps, in their order, and its rows of y.
template <class Format, class T>
__device__ void finish_tile(const RowProduct<T>& call, Dim tile, float (&sum)[2],
                            float (&partial)[kWarps][kTile]) {
  const Lane lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xFFFFFFFFU, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xFFFFFFFFU, sum[half], 2);
    if (lane.t == 0) partial[lane.warp][lane.g + 8 * half] = sum[half];
  }
  __syncthreads();
  const Dim m = tile + threadIdx.x;
  if (threadIdx.x >= kTile || m >= call.M) return;
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += partial[warp][threadIdx.x];
  if constexpr (!Format::kGrouped) total *= static_cast<const float*>(call.scales)[m];
  if (call.bias != nullptr) total += to_real(call.bias[m]);
  call.y[m] = from_real<T>(total);
}

/// A block takes tiles gridDim.x apart. While a step is multiplied the next is on its way, of the
/// next tile if need be; the first is before earlier kernels end.
template <class Format, class T>
__global__ void __launch_bounds__(kThreads, kResident) quantized_row_kernel(RowProduct<T> call) {
  using Steps = Step<Format, T>;
  constexpr Dim kStride = kWarps * Steps::kColumns;
  extern __shared__ uint4 shared[];
  __shared__ float partial[2][kWarps][kTile];  // by turns, so that a tile needs one barrier
  overlap();
  auto* bytes = reinterpret_cast<std::uint8_t*>(shared);
  const FixedRow x = {bytes, reinterpret_cast<Span*>(bytes + 2 * call.K)};
  const Dim own = Lane().warp * Steps::kColumns;
  const Dim tiles_apart = static_cast<Dim>(gridDim.x) * kTile;
  Dim tile = static_cast<Dim>(blockIdx.x) * kTile;
  Steps step;
  step.load(call, tile, own);
  wait_for_earlier();
  fix_row<Format>(call.x, call.K, x);
  __syncthreads();
  for (int turn = 0; tile < call.M; tile += tiles_apart, turn ^= 1) {
    float sum[2] = {};
    for (Dim k = own; k < call.K; k += kStride) {
      const bool last = k + kStride >= call.K;
      Steps next;
      next.load(call, last ? tile + tiles_apart : tile, last ? own : k + kStride);
      step.multiply(x, call.K, k, sum);
      step = next;
    }
    finish_tile<Format>(call, tile, sum, partial[turn]);
  }
}

/// Blocks that are resident at once, with as equal numbers of tiles as can be.
unsigned blocks_for(Dim M) {
  static const Dim processors = [] {
    int device = 0;
    int count = 0;
    check_cuda(cudaGetDevice(&device), "quantized_linear_forward", "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
               "quantized_linear_forward", "cudaDeviceGetAttribute");
    return static_cast<Dim>(count);
  }();
  const Dim tiles = ceil_divide(M, kTile);
  const Dim turns = ceil_divide(tiles, processors * kResident);
  return static_cast<unsigned>(ceil_divide(tiles, turns));
}

template <class Format>
std::size_t shared_bytes(Dim K) {
  return static_cast<std::size_t>(2 * K) +
         static_cast<std::size_t>(K / Format::kCodes) * sizeof(Span);
}

template <class Format, class T>
bool launch(Context& ctx, const RowProduct<T>& call) {
  if (call.K % Format::kCodes != 0 || !aligned(call.x, call.weight)) return false;
  const std::size_t shared = shared_bytes<Format>(call.K);
  if (shared > kMostShared) return false;
  launch_overlapping(ctx, "quantized_linear_forward", quantized_row_kernel<Format, T>,
                     {blocks_for(call.M), kThreads, shared}, call);
  return true;
}

}  // namespace

bool quantized_row(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias, View y) {
  if (leading(x.shape()) != 1 || weight.format == WeightFormat::nf4) return false;
  const auto group = static_cast<std::uint64_t>(weight.group);
  const bool is_int8 = weight.format == WeightFormat::int8;
  if (!is_int8 && (group < Int4Codes::kCodes || !std::has_single_bit(group))) return false;
  bool taken = false;
  with_element(x.dtype(), "quantized_linear_forward", [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const RowProduct<T> call = {
          x.data<T>(),         static_cast<const std::uint8_t*>(weight.codes.raw()),
          weight.scales.raw(), optional_data<T>(bias),
          y.data<T>(),         std::countr_zero(group),
          weight.shape[0],     weight.shape[1]};
      if (call.M == 0 || call.K == 0) return;
      taken = is_int8 ? launch<Int8Codes>(ctx, call) : launch<Int4Codes>(ctx, call);
    }
  });
  return taken;
}

}  // namespace hyperslab::ops::cuda
