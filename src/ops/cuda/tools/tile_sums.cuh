// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/products/weight_ring.cuh"

namespace hyperslab::ops::cuda {

/// A lane's sums of a tile's two boxes over the columns that it has seen.
using RowSum = float[2];

/// The sums of tiles on their way from the readers to the warp that finishes them, which waits for
/// scales and writes while they go on.
class TileSums {
 public:
  static constexpr int kBuffers = 4;
  struct Memory {
    std::uint64_t full[kBuffers];
    std::uint64_t empty[kBuffers];
    float sums[kBuffers][kRingWarps][kRingTile];
  };
  __device__ explicit TileSums(Memory& memory) : memory_(memory) {}

  /// One thread, before all others pass a barrier of the block.
  __device__ void init() {
    for (int i = 0; i < kBuffers; ++i) {
      tma::init(&memory_.full[i], kRingWarps);
      tma::init(&memory_.empty[i], 1);
    }
  }

  /// Every reading warp: its sum of the next tile.
  __device__ void give(const RowSum& sum) {
    const RingLane lane;
    tma::wait(&memory_.empty[buffer_], phase_ ^ 1U);
    if (lane.t == 0) {
      memory_.sums[buffer_][lane.warp][lane.g] = sum[0];
      memory_.sums[buffer_][lane.warp][lane.g + kRingBox] = sum[1];
    }
    __syncwarp();
    if (lane.index == 0) tma::arrive(&memory_.full[buffer_]);
    advance();
  }

  /// The finishing warp: the sum over the warps, in one order, of row lane % 16 of the next tile.
  __device__ float take() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tma::wait(&memory_.full[buffer_], phase_);
    float total = 0;
    const int first = lane / kRingTile * (kRingWarps / 2);
#pragma unroll
    for (int i = 0; i < kRingWarps / 2; ++i) {
      total += memory_.sums[buffer_][first + i][lane % kRingTile];
    }
    total += __shfl_xor_sync(0xFFFFFFFFU, total, kRingTile);
    if (lane == 0) tma::arrive(&memory_.empty[buffer_]);
    advance();
    return total;
  }

 private:
  __device__ void advance() {
    if (++buffer_ < kBuffers) return;
    buffer_ = 0;
    phase_ ^= 1U;
  }
  Memory& memory_;
  int buffer_ = 0;
  unsigned phase_ = 0;
};

}  // namespace hyperslab::ops::cuda
