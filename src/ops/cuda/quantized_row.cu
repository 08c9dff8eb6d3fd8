// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "../checks.hpp"
#include "kernels_activation.cuh"
#include "matrix_vector.hpp"
#include "weight_ring.cuh"

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

constexpr float kLargest = 127 * 256;  // of the integers that x becomes
constexpr float kSmallest = 1e-30F;    // below it x counts as zero
constexpr Dim kMostColumns = 18432;    // whose x fits into shared memory beside the ring

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
  RingSource source;
  const T* x;
  const float* row_scales;  ///< of int8
  const T* bias;
  T* y;
  int group_bytes_log2;  ///< of codes of int4
  Dim K;
  Activation activation;  ///< of a gated source
};
template <class Format>
using RowRing = WeightRing<Format::kGrouped>;

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
  for (Dim first = 0; first < vectors; first += kRingReaders) {
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

/// `own`: bytes of x that this lane holds, zeros for the others.
template <class Format>
__device__ void multiply_codes(const std::uint8_t* from, bool own, const std::uint32_t (&low)[4],
                               const std::uint32_t (&high)[4], int (&product)[4]) {
  constexpr int kCodes = Format::kCodes;
  std::uint32_t x[kCodes / 16][4] = {};
#pragma unroll
  for (int i = 0; i < kCodes / 16; ++i) {
    if (own) load_words(from + 16 * i, x[i]);
  }
  if constexpr (Format::kGrouped) {
    constexpr std::uint32_t kEven = 0x0F0F0F0FU;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t a[4] = {low[i] & kEven, high[i] & kEven, low[i] >> 4 & kEven,
                                  high[i] >> 4 & kEven};
      multiply_add(product, a, x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const std::uint32_t a[4] = {low[i], high[i], low[i + 1], high[i + 1]};
      multiply_add(product, a, x[0][i], x[0][i + 1]);
    }
  }
}

/// What a stage adds to the sums of a lane's two rows.
template <class Format, class T>
__device__ void add_stage(const RowProduct<T>& call, const std::uint8_t* stage, int piece,
                          const FixedRow& x, float (&sum)[2]) {
  constexpr int kCodes = Format::kCodes;
  const RingLane lane;
  const int at = piece * kRingPiece + lane.in_piece();
  const bool present = at < call.source.row_bytes;
  const Span span = present ? x.spans[at / 16] : Span{};
  std::uint32_t low[4];
  std::uint32_t high[4];
  load_words(stage + lane.g * kRingPiece + lane.in_piece(), low);
  load_words(stage + (lane.g + kRingBox) * kRingPiece + lane.in_piece(), high);
  int product[4] = {};
  multiply_codes<Format>(x.bytes + at / 16 * 2 * kCodes + lane.g % 2 * kCodes,
                         lane.g / 2 == lane.t && present, low, high, product);
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    const int exact = 256 * product[2 * box] + product[2 * box + 1] - span.zero;
    float scaled = static_cast<float>(exact) * span.scale;
    if constexpr (Format::kGrouped) {
      const auto* scales = reinterpret_cast<const f16*>(
          stage + RowRing<Format>::kScalesAt + (lane.g + kRingBox * box) * call.source.scale_piece);
      scaled *= to_real(scales[lane.in_piece() >> call.group_bytes_log2]);
    }
    sum[box] += scaled;
  }
}

/// The sum over the warps of row `row` of a tile, which is row m of the weights.
template <class Format, class T>
__device__ float total_of(const RowProduct<T>& call, const float (&partial)[kRingWarps][kRingTile],
                          int row, int m) {
  float total = 0;
  for (int warp = 0; warp < kRingWarps; ++warp) total += partial[warp][row];
  if constexpr (!Format::kGrouped) total *= call.row_scales[m];
  return with_bias(total, call.bias, m);
}

/// The sums of a tile over lanes and then warps, in their order, and its rows of y.
template <class Format, class T>
__device__ void finish_tile(const RowProduct<T>& call, int tile, float (&sum)[2],
                            float (&partial)[kRingWarps][kRingTile]) {
  const RingLane lane;
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    sum[box] += __shfl_xor_sync(0xFFFFFFFFU, sum[box], 1);
    sum[box] += __shfl_xor_sync(0xFFFFFFFFU, sum[box], 2);
    if (lane.t == 0) partial[lane.warp][lane.g + kRingBox * box] = sum[box];
  }
  sync_readers();
  const auto row = static_cast<int>(threadIdx.x);
  if (row >= (call.source.gated ? kRingBox : kRingTile)) return;
  const int m = call.source.row(tile, row / kRingBox) + row % kRingBox;
  if (m >= call.source.M) return;
  float total = total_of<Format>(call, partial, row, m);
  if (call.source.gated) {
    const int up = m + call.source.M / 2;
    total = gated<T>(call.activation, total, total_of<Format>(call, partial, row + kRingBox, up));
  }
  call.y[m] = from_real<T>(total);
}

/// A block takes tiles gridDim.x apart; its last warp fills the ring.
template <class Format, class T>
__global__ void __launch_bounds__(kRingThreads, 1)
    quantized_row_kernel(const __grid_constant__ RowProduct<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ typename RowRing<Format>::Barriers barriers;
  __shared__ float partial[2][kRingWarps][kRingTile];  // by turns, so that a tile needs one barrier
  overlap();
  RowRing<Format> ring(shared, barriers);
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x >= kRingReaders) {
    if (threadIdx.x == kRingReaders) ring.fill(call.source);
    return;
  }
  std::uint8_t* bytes = shared + RowRing<Format>::kBytes;
  const FixedRow x = {bytes, reinterpret_cast<Span*>(bytes + 2 * call.K)};
  wait_for_earlier();
  fix_row<Format>(call.x, call.K, x);
  sync_readers();
  int turn = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < call.source.tiles();
       tile += static_cast<int>(gridDim.x), turn ^= 1) {
    float sum[2] = {};
    for (int piece = 0; piece < call.source.pieces(); ++piece) {
      add_stage<Format>(call, ring.next(), piece, x, sum);
      ring.release();
    }
    finish_tile<Format>(call, tile, sum, partial[turn]);
  }
#endif
}

template <class Format>
std::size_t shared_bytes(Dim K) {
  return static_cast<std::size_t>(RowRing<Format>::kBytes + 2 * K) +
         static_cast<std::size_t>(K / Format::kCodes) * sizeof(Span);
}

constexpr std::size_t kMostStatic = 4096;  // bytes of shared memory beside
static_assert(RowRing<Int8Codes>::kBytes + kMostColumns * 2 +
                      kMostColumns / Int8Codes::kCodes * sizeof(Span) + kMostStatic <=
                  kRingShared &&
              RowRing<Int4Codes>::kBytes + kMostColumns * 2 +
                      kMostColumns / Int4Codes::kCodes * sizeof(Span) + kMostStatic <=
                  kRingShared);

template <class Format, class T>
void launch(Context& ctx, const RowProduct<T>& call) {
  launch_ring(ctx, "quantized_linear_forward", quantized_row_kernel<Format, T>,
              shared_bytes<Format>(call.K), call);
}

/// Bytes of scales beside kRingPiece bytes of codes, 0 if the copy engine does not take them.
int scale_piece(const CQuantizedMatrix& weight) {
  const auto group = static_cast<std::uint64_t>(weight.group);
  if (group < Int4Codes::kCodes || !std::has_single_bit(group)) return 0;
  const Dim bytes = 2 * Dim{kRingPiece} / weight.group * 2;
  const Dim row_bytes = weight.shape[1] / weight.group * 2;
  return bytes % 16 == 0 && row_bytes % 16 == 0 ? static_cast<int>(bytes) : 0;
}

}  // namespace

bool suits_quantized_row(CView x, const CQuantizedMatrix& weight, bool gated) {
  const bool is_16_bit = x.dtype() == DType::bf16 || x.dtype() == DType::f16;
  if (!is_16_bit || leading(x.shape()) != 1 || weight.format == WeightFormat::nf4) return false;
  const bool is_int8 = weight.format == WeightFormat::int8;
  const Dim K = weight.shape[1];
  if (K > kMostColumns || !suits_ring(weight.shape[0], is_int8 ? K : K / 2, gated)) return false;
  return aligned(x.raw(), weight.codes.raw(), weight.scales.raw()) &&
         (is_int8 || (K % Int4Codes::kCodes == 0 && scale_piece(weight) > 0));
}

void quantized_row(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                   const RowsOutput& out) {
  constexpr const char* kName = "quantized_linear_forward";
  with_element(x.dtype(), kName, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const Dim K = weight.shape[1];
      const bool is_int8 = weight.format == WeightFormat::int8;
      RowProduct<T> call = {
          ring_source(kName, weight.codes.raw(), weight.shape[0], is_int8 ? K : K / 2, out.gated),
          x.data<T>(),
          is_int8 ? weight.scales.data<float>() : nullptr,
          optional_data<T>(bias),
          out.y.data<T>(),
          std::countr_zero(static_cast<std::uint64_t>(weight.group)) - 1,
          K,
          out.activation};
      if (is_int8) return launch<Int8Codes>(ctx, call);
      add_ring_scales(kName, weight.scales.raw(), K / weight.group * 2, scale_piece(weight),
                      call.source);
      launch<Int4Codes>(ctx, call);
    }
  });
}

}  // namespace hyperslab::ops::cuda
