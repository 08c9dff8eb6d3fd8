// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "cuda/tools/activation.cuh"
#include "cuda/tools/tile_sums.cuh"
#include "weight_ring.cuh"

// One row of x by weights that come through a ring. x lies in shared memory, in the form in which
// the tensor cores take it beside the weights of a format: rounded to T beside weights of T, and as
// integers beside int8 or int4 ones, which never become floating-point numbers. Then x becomes
// integers of 16 bits, with a scale for the columns of each lane, and the tensor cores multiply the
// codes by its upper and its lower bytes. Of mma.m16n8k32's eight columns, two belong to each of
// the four lanes that share a row: the upper and the lower bytes of this lane's own x, zero for the
// other lanes. So each lane gets the sum over its own columns alone, exactly, and scales it; groups
// may be as small as the 32 codes of int4 that a lane loads at once.
//
// For 32 bytes of codes a lane issues about 45 (int8) or 75 (int4) instructions. A multiprocessor
// issues 128 a clock and takes in 19 bytes of memory: they use a fifth to a third of it.

namespace hyperslab::ops::cuda {

constexpr Dim kMostColumns = 18432;  // columns whose x fits into shared memory beside the ring

/// The weights of a product as a kernel takes them.
template <class T>
struct RowWeights {
  RingSource source;
  const float* row_scales;  ///< (M) scales of int8
  const T* bias;
  int group_bytes_log2;  ///< bytes of a group of int4 codes are 1 << this
};

/// The sizes that a loop over stages needs of the weights, in registers.
struct StageShape {
  int row_bytes;
  int scale_piece;
  int group_bytes_log2;
  template <class T>
  __device__ explicit StageShape(const RowWeights<T>& weights)
      : row_bytes(weights.source.row_bytes),
        scale_piece(weights.source.scale_piece),
        group_bytes_log2(weights.group_bytes_log2) {}
};

/// The destination of the product: y (M), or (M / 2) as gated_forward has it if the source is
/// gated, else the activation of it if `activates`.
template <class T>
struct RowOutput {
  T* y;
  Activation activation;
  bool activates;
};

/// kCodes: codes in 16 bytes. kGrouped: true if each group has a scale, false if each row has one.
struct Int8Codes {
  static constexpr int kCodes = 16;
  static constexpr bool kGrouped = false;
};
struct Int4Codes {
  static constexpr int kCodes = 32;
  static constexpr bool kGrouped = true;
};

// Every format has
//   kScaled        true if scales come with the codes;
//   Row            x in shared memory, of shared_bytes(K) bytes, aligned to 16;
//   keep(read, row, K)   all readers: x, of which read(v, value) gives columns 8 v to 8 v + 7; a
//                  barrier of the readers must follow;
//   Total          a lane's sums of a tile, add_stage() which adds a stage to it, and sums(), in
//                  lanes with t = 0 the sums over the four lanes that share a row.

/// All readers: keep(v, present, value) for every vector of eight columns, with `present` false for
/// threads that have none. Read::kAtOnce are read at once, as each read waits for the L2 cache.
template <class Read, class Keep>
__device__ void for_vectors(const Read& read, Dim K, const Keep& keep) {
  constexpr int kAtOnce = Read::kAtOnce;
  const Dim vectors = K / 8;
  for (Dim first = 0; first < vectors; first += kAtOnce * kRingReaders) {
    float value[kAtOnce][8] = {};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const Dim v = first + k * kRingReaders + threadIdx.x;
      if (v < vectors) read(v, value[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kRingReaders >= vectors) break;
      const Dim v = first + k * kRingReaders + threadIdx.x;
      keep(v, v < vectors, value[k]);
    }
  }
}

/// Columns of x as they are in memory.
template <class T>
struct StoredColumns {
  static constexpr int kAtOnce = 4;
  const T* x;
  __device__ void operator()(Dim v, float (&value)[8]) const { load<8>(x + v * 8, value); }
};

/// Weights of T, 16 bits.
template <class T>
struct PlainFormat {
  static constexpr bool kScaled = false;
  struct Row {
    T* values;
    __device__ Row(std::uint8_t* shared, Dim) : values(reinterpret_cast<T*>(shared)) {}
  };
  struct Total {
    float at[4] = {};
  };
  [[nodiscard]] __host__ static std::size_t shared_bytes(Dim K) {
    return static_cast<std::size_t>(2 * K);
  }

  template <class Read>
  __device__ static void keep(const Read& read, const Row& row, Dim K) {
    for_vectors(read, K, [&](Dim v, bool present, const float(&value)[8]) {
      if (present) store<8>(row.values + v * 8, value);
    });
  }

  __device__ static void add_stage(const StageShape& shape, const std::uint8_t* stage, int piece,
                                   const Row& x, Total& total) {
    const RingLane lane;
    const int at = piece * kRingPiece + lane.in_piece();
    std::uint32_t low[4];
    std::uint32_t high[4];
    std::uint32_t own[4] = {};
    load_words(stage + lane.g * kRingPiece + lane.in_piece(), low);
    load_words(stage + (lane.g + kRingBox) * kRingPiece + lane.in_piece(), high);
    if (lane.g == 0 && at < shape.row_bytes) {
      load_words(reinterpret_cast<const std::uint8_t*>(x.values) + at, own);
    }
    multiply_add<T>(total.at, {low[0], high[0], low[1], high[1]}, own[0], own[1]);
    multiply_add<T>(total.at, {low[2], high[2], low[3], high[3]}, own[2], own[3]);
  }

  /// Only the first row of mma's eight is x.
  __device__ static void sums(const Total& total, RowSum& sum) {
    sum[0] = total.at[0];
    sum[1] = total.at[2];
  }
};

/// Weights of int8 or int4.
template <class Codes, class T>
struct CodeFormat {
  static constexpr bool kScaled = Codes::kGrouped;
  static constexpr int kCodes = Codes::kCodes;
  static constexpr float kLargest = 127 * 256;  // magnitude of the integers that x becomes
  static constexpr float kSmallest = 1e-30F;    // below it x counts as zero

  /// The scale of kCodes columns of x, and the share of a sum that the codes' zero of 8 makes.
  struct Span {
    float scale;
    int zero;
  };
  /// For every span the upper bytes of its columns, then the lower ones.
  struct Row {
    std::uint8_t* bytes;
    Span* spans;
    __device__ Row(std::uint8_t* shared, Dim K)
        : bytes(shared), spans(reinterpret_cast<Span*>(shared + 2 * K)) {}
  };
  struct Total {
    float at[2] = {};
  };
  [[nodiscard]] __host__ static std::size_t shared_bytes(Dim K) {
    return static_cast<std::size_t>(2 * K) + static_cast<std::size_t>(K / kCodes) * sizeof(Span);
  }

  template <class Read>
  __device__ static void keep(const Read& read, const Row& row, Dim K) {
    constexpr int kTeam = kCodes / 8;  // threads of a span
    for_vectors(read, K, [&](Dim v, bool present, const float(&value)[8]) {
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
      if (!present) return;
      std::uint32_t upper[2] = {};
      std::uint32_t lower[2] = {};
      split(fixed, upper, lower);
      std::uint8_t* to = row.bytes + v / kTeam * 2 * kCodes + v % kTeam * 8;
      *reinterpret_cast<uint2*>(to) = {upper[0], upper[1]};
      *reinterpret_cast<uint2*>(to + kCodes) = {lower[0], lower[1]};
      if (v % kTeam == 0) {
        row.spans[v / kTeam] = {top / kLargest + poison, Codes::kGrouped ? 8 * sum : 0};
      }
    });
  }

  __device__ static void add_stage(const StageShape& shape, const std::uint8_t* stage, int piece,
                                   const Row& x, Total& total) {
    const RingLane lane;
    const int at = piece * kRingPiece + lane.in_piece();
    const bool present = at < shape.row_bytes;
    const Span span = present ? x.spans[at / 16] : Span{};
    std::uint32_t low[4];
    std::uint32_t high[4];
    load_words(stage + lane.g * kRingPiece + lane.in_piece(), low);
    load_words(stage + (lane.g + kRingBox) * kRingPiece + lane.in_piece(), high);
    int product[4] = {};
    multiply_codes(x.bytes + at / 16 * 2 * kCodes + lane.g % 2 * kCodes,
                   lane.g / 2 == lane.t && present, low, high, product);
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      const int exact = 256 * product[2 * box] + product[2 * box + 1] - span.zero;
      float scaled = static_cast<float>(exact) * span.scale;
      if constexpr (Codes::kGrouped) {
        const auto* scales = reinterpret_cast<const f16*>(
            stage + WeightRing<true>::kScalesAt + (lane.g + kRingBox * box) * shape.scale_piece);
        scaled *= to_real(scales[lane.in_piece() >> shape.group_bytes_log2]);
      }
      total.at[box] += scaled;
    }
  }

  __device__ static void sums(const Total& total, RowSum& sum) {
#pragma unroll
    for (int box = 0; box < 2; ++box) {
      sum[box] = total.at[box] + __shfl_xor_sync(0xFFFFFFFFU, total.at[box], 1);
      sum[box] += __shfl_xor_sync(0xFFFFFFFFU, sum[box], 2);
    }
  }

 private:
  /// The amax of a team's columns, and not-a-number if one of them is infinite or not
  /// a number, else zero.
  struct Peak {
    float top;
    float poison;
  };
  template <int kTeam>
  __device__ static Peak peak_of(const float (&value)[8]) {
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

  /// Eight integers as bytes: upper[0] and [1], lower[0] and [1], in the order in which codes come
  /// out of their words: as they are, or even columns' first.
  __device__ static void split(const int (&fixed)[8], std::uint32_t (&upper)[2],
                               std::uint32_t (&lower)[2]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int word = Codes::kGrouped ? i % 2 : i / 4;
      const int shift = 8 * (Codes::kGrouped ? i / 2 : i % 4);
      const int low = static_cast<std::int8_t>(fixed[i] & 255);
      upper[word] |= static_cast<std::uint32_t>((fixed[i] - low) >> 8 & 255) << shift;
      lower[word] |= static_cast<std::uint32_t>(low & 255) << shift;
    }
  }

  /// `own`: bytes of x that this lane holds, zeros for the others.
  __device__ static void multiply_codes(const std::uint8_t* from, bool own,
                                        const std::uint32_t (&low)[4],
                                        const std::uint32_t (&high)[4], int (&product)[4]) {
    std::uint32_t x[kCodes / 16][4] = {};
#pragma unroll
    for (int i = 0; i < kCodes / 16; ++i) {
      if (own) load_words(from + 16 * i, x[i]);
    }
    if constexpr (Codes::kGrouped) {
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
};

constexpr int kRowThreads = kRingThreads + 32;  // readers, the warp that fills, one that finishes

/// True if this thread is of the warp that finishes tiles.
[[nodiscard]] __device__ inline bool is_finisher() {
  return static_cast<int>(threadIdx.x) >= kRingThreads;
}

/// All readers: the sums of the block's tiles, gridDim.x apart, of the x in `row`.
template <class Format, class Ring, class T>
__device__ void multiply_row(Ring& ring, const RowWeights<T>& weights,
                             const typename Format::Row& row, TileSums& tiles) {
  const StageShape shape(weights);
  const int pieces = weights.source.pieces();
  const int tile_count = weights.source.tiles();
  for (int tile = static_cast<int>(blockIdx.x); tile < tile_count;
       tile += static_cast<int>(gridDim.x)) {
    typename Format::Total total;
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      Format::add_stage(shape, ring.next(), piece, row, total);
      ring.release();
    }
    RowSum sum;
    Format::sums(total, sum);
    tiles.give(sum);
  }
}

/// Out of line, as a warp of many runs it, for one activation of several.
template <class T>
__device__ __noinline__ float finish_gated(Activation activation, float gate, float up) {
  return gated<T>(activation, gate, up);
}
template <class T>
__device__ __noinline__ float finish_activated(Activation activation, float pre) {
  return activated<T>(activation, pre);
}

/// The finishing warp: y of the same tiles.
template <class T>
__device__ void finish_row(const RowWeights<T>& weights, TileSums& tiles, const RowOutput<T>& out) {
  const RingShape source = weights.source;
  const float* scales = weights.row_scales;
  const T* biases = weights.bias;
  const int row = static_cast<int>(threadIdx.x) % kRingTile;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int tile = static_cast<int>(blockIdx.x); tile < source.tiles();
       tile += static_cast<int>(gridDim.x)) {
    const int m = source.row(tile, row / kRingBox) + row % kRingBox;
    const bool present = m < source.M;
    const float scale = present && scales != nullptr ? scales[m] : 1.0F;
    const float bias = present && biases != nullptr ? to_real(biases[m]) : 0.0F;
    float total = tiles.take();
    total = total * scale + bias;
    if (source.gated) {
      const float up = __shfl_down_sync(0xFFFFFFFFU, total, kRingBox);
      total = finish_gated<T>(out.activation, total, up);
    } else if (out.activates) {
      total = finish_activated<T>(out.activation, total);
    }
    if (present && lane < (source.gated ? kRingBox : kRingTile)) out.y[m] = from_real<T>(total);
  }
}

/// Bytes of scales beside kRingPiece bytes of codes of int4, 0 if the copy engine does not take
/// them.
[[nodiscard]] int scale_piece(const CQuantizedMatrix& weight);

/// True if a ring takes these codes, of K at most kMostColumns.
[[nodiscard]] bool suits_row_codes(const CQuantizedMatrix& weight, bool gated);

/// int8 or int4 weights that suits_row_codes takes.
template <class T>
[[nodiscard]] RowWeights<T> row_codes(const char* op, const CQuantizedMatrix& weight, CView bias,
                                      bool gated) {
  const bool is_int8 = weight.format == WeightFormat::int8;
  const Dim K = weight.shape[1];
  RowWeights<T> out = {
      ring_source(op, weight.codes.raw(), weight.shape[0], is_int8 ? K : K / 2, gated),
      is_int8 ? weight.scales.data<float>() : nullptr, optional_data<T>(bias),
      is_int8 ? 0 : std::countr_zero(static_cast<std::uint64_t>(weight.group)) - 1};
  if (!is_int8) {
    add_ring_scales(op, weight.scales.raw(), K / weight.group * 2, scale_piece(weight), out.source);
  }
  return out;
}

}  // namespace hyperslab::ops::cuda
