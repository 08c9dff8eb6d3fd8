// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/tools/handles.hpp"
#include "cuda/tools/mma.cuh"
#include "cuda/tools/tma.cuh"

// A matrix on its way through shared memory, for products that read every weight once. A block
// multiplies tiles of 16 rows, gridDim.x apart; one warp asks the copy engine (TMA) for boxes of
// them, a ring of stages ahead of the warps that multiply, from tile to tile without a pause. The
// first boxes are in progress before earlier kernels have ended, as weights do not change.

namespace hyperslab::ops::cuda {

constexpr int kRingTile = 16;     // rows of the matrix in a stage
constexpr int kRingPiece = 1024;  // bytes of each of them
constexpr int kRingBox = 8;       // rows that are copied at once, two boxes a stage
constexpr int kRingWarps = 16;    // warps that share the columns of a piece, 64 bytes each
constexpr int kRingReaders = 32 * kRingWarps;
constexpr int kRingThreads = kRingReaders + 32;  // the last warp fills the ring
static_assert(kRingPiece == 64 * kRingWarps && kRingTile == 2 * kRingBox);
constexpr int kRingShared = 227 * 1024;  // bytes that a block may use on Hopper

/// Sizes of a matrix in a ring. Loops take a copy, which stays in registers.
struct RingShape {
  int row_bytes;    ///< bytes of codes or elements
  int scale_piece;  ///< bytes of a row's scales in a box; 0: none
  int M;
  bool gated;  ///< a tile has eight rows of the first half and the same of the second

  [[nodiscard]] __host__ __device__ int tiles() const { return (M + kRingTile - 1) / kRingTile; }
  [[nodiscard]] __host__ __device__ int pieces() const {
    return (row_bytes + kRingPiece - 1) / kRingPiece;
  }
  /// The first row of either box of a tile.
  [[nodiscard]] __device__ int row(int tile, int box) const {
    return gated ? box * (M / 2) + tile * kRingBox : tile * kRingTile + box * kRingBox;
  }
};

/// The matrix, and the scales of its rows' groups or none, as the copy engine takes them.
struct RingSource : RingShape {
  CUtensorMap codes;   ///< boxes of kRingPiece bytes of kRingBox rows
  CUtensorMap scales;  ///< boxes of the scales of kRingBox rows
};

/// The position of a reading lane in the layout of tools/mma.cuh.
struct RingLane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int index = static_cast<int>(threadIdx.x) % 32;
  int g = index / 4;
  int t = index % 4;
  /// The first of its 16 bytes in a piece of a row.
  [[nodiscard]] __device__ int in_piece() const { return warp * 64 + t * 16; }
};

/// The ring of a block, of as many stages as leave no room for a second block beside it: the next
/// kernel would fill its ring while this one needs the memory's whole speed.
template <bool kScaled, int kCount = kScaled ? 6 : 8>
class WeightRing {
 public:
  static constexpr int kStages = kCount;
  static constexpr int kMostScales = 128;  // bytes of a row in a stage
  static constexpr int kScalesAt = kRingTile * kRingPiece;
  static constexpr int kStageBytes = kScalesAt + (kScaled ? kRingTile * kMostScales : 0);
  static constexpr int kBytes = kStages * kStageBytes;  // shared memory, aligned to 128
  struct Barriers {
    std::uint64_t full[kStages];
    std::uint64_t empty[kStages];
  };

  __device__ WeightRing(std::uint8_t* memory, Barriers& barriers)
      : memory_(memory), barriers_(barriers) {}

  /// One thread, before all others pass a barrier of the block.
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      tma::init(&barriers_.full[i], 1);
      tma::init(&barriers_.empty[i], kRingWarps);
    }
    tma::publish_init();
  }

  /// One thread: asks for all boxes of the block's tiles. `source` is a kernel's parameter.
  __device__ void fill(const RingSource& source) {
    const std::uint64_t policy = tma::read_once();
    const RingShape shape = source;
    const int pieces = shape.pieces();
    const auto bytes = static_cast<unsigned>(kRingTile * (kRingPiece + shape.scale_piece));
    for (int tile = static_cast<int>(blockIdx.x); tile < shape.tiles(); tile += gridDim.x) {
      for (int piece = 0; piece < pieces; ++piece) {
        std::uint64_t* full = &barriers_.full[stage_];
        std::uint8_t* stage = memory_ + stage_ * kStageBytes;
        tma::wait(&barriers_.empty[stage_], phase_ ^ 1U);
        tma::arrive_for(full, bytes);
        for (int box = 0; box < 2; ++box) {
          tma::copy(stage + box * kRingBox * kRingPiece, source.codes, piece * (kRingPiece / 8),
                    shape.row(tile, box), full, policy);
          if constexpr (kScaled) {
            tma::copy(stage + kScalesAt + box * kRingBox * shape.scale_piece, source.scales,
                      piece * (shape.scale_piece / 2), shape.row(tile, box), full, policy);
          }
        }
        advance();
      }
    }
  }

  /// The stage that is next in turn, once it is full: every reading warp.
  [[nodiscard]] __device__ const std::uint8_t* next() const {
    tma::wait(&barriers_.full[stage_], phase_);
    return memory_ + stage_ * kStageBytes;
  }
  /// This warp has read it.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) tma::arrive(&barriers_.empty[stage_]);
    advance();
  }

 private:
  __device__ void advance() {
    if (++stage_ < kStages) return;
    stage_ = 0;
    phase_ ^= 1U;
  }

  std::uint8_t* memory_;
  Barriers& barriers_;
  int stage_ = 0;
  unsigned phase_ = 0;
};

/// All warps but the one that fills the ring.
__device__ inline void sync_readers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kRingReaders) : "memory");
}

/// 16 bytes of shared memory.
__device__ inline void load_words(const std::uint8_t* from, std::uint32_t (&to)[4]) {
  const uint4 loaded = *reinterpret_cast<const uint4*>(from);
  to[0] = loaded.x;
  to[1] = loaded.y;
  to[2] = loaded.z;
  to[3] = loaded.w;
}

/// The element of a lane's tile and its bias, as the product leaves them.
template <class T>
__device__ float with_bias(float total, const T* bias, int m) {
  return bias == nullptr ? total : total + to_real(bias[m]);
}

/// True if the copy engine and kRingShared are there, and take M rows of so many bytes, by halves
/// if `gated`.
[[nodiscard]] bool suits_ring(Dim M, Dim row_bytes, bool gated);

/// The matrix `codes` (M, row_bytes), a row aligned to 16 bytes.
[[nodiscard]] RingSource ring_source(const char* op, const void* codes, Dim M, Dim row_bytes,
                                     bool gated);
/// Adds the scales of `scale_row_bytes` a row, of which `piece` belong to kRingPiece bytes of
/// codes.
void add_ring_scales(const char* op, const void* scales, Dim scale_row_bytes, int piece,
                     RingSource& source);

/// Launches a kernel that reads weights through a ring, one block on each multiprocessor, of those
/// that `tiles` tiles need.
template <int kThreads = kRingThreads, class Call>
void launch_ring(Context& ctx, const char* op, void (*kernel)(Call), std::size_t shared, int tiles,
                 const std::type_identity_t<Call>& call) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared)),
             op, "cudaFuncSetAttribute");
  const auto blocks = static_cast<unsigned>(std::min(multiprocessors(), tiles));
  launch_overlapping(ctx, op, kernel, {blocks, kThreads, shared}, call);
}

}  // namespace hyperslab::ops::cuda
