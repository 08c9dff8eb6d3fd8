// SPDX-License-Identifier: Apache-2.0
// Boxes of rows that lie anywhere in a matrix, for the products of warpgroups. The copy engine has
// no such boxes on Hopper: the threads of the warpgroup that loads copy 16 bytes each.
#pragma once

#include "cuda/tools/shared_tile.cuh"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/experts.hpp"
#include "warpgroup_tiles.cuh"

namespace hyperslab::ops::cuda::experts {

inline constexpr int kChunks = kDepth * 2 / 16;  // 16 bytes each, of a row of a box

/// The matrix of GatheredRows.
struct GatheredMatrix {
  const uint4* values;
  const std::int32_t* pairs;
  int divisor;
  int chunks;  ///< 16 bytes each, of a row
};

inline GatheredMatrix gathered_matrix(const GatheredRows& rows) {
  const Dim chunk = 16 / static_cast<Dim>(size_of(rows.values.dtype()));
  require(rows.values.numel() / chunk <= Dim{INT32_MAX}, "too many values to gather rows from");
  return {.values = static_cast<const uint4*>(rows.values.raw()),
          .pairs = rows.pairs.data<std::int32_t>(),
          .divisor = static_cast<int>(rows.divisor),
          .chunks = static_cast<int>(rows.values.shape().back() / chunk)};
}

/// The part of a loading thread in boxes of kRows rows of 128 bytes: one chunk of every 16th row.
template <int kRows>
class GatheredBox {
 public:
  /// place(row): chunks before a row of the box.
  template <class Place>
  __device__ explicit GatheredBox(const Place& place) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) places_[i] = place(own_row() + i * kApart);
  }
  /// Starts to copy eight chunks of each row, swizzled as boxes of the copy engine are; zeros
  /// beyond a row's end.
  __device__ void load(const GatheredMatrix& from, int first_chunk, unsigned char* to) const {
    const int own_chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int chunk = first_chunk + own_chunk;
    const bool there = chunk < from.chunks;
    const std::uint32_t at =
        tma::shared_address(to) +
        static_cast<std::uint32_t>(own_row() * kRowBytes + (own_chunk ^ own_row() % 8) * 16);
    const uint4* const values = from.values + (there ? chunk : 0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      load_chunk(at + i * kApart * kRowBytes, values + static_cast<std::uint32_t>(places_[i]),
                 there);
    }
  }

 private:
  static constexpr int kRowBytes = kDepth * 2;
  static constexpr int kApart = warpgroup::kThreads / kChunks;
  static constexpr int kEach = kRows / kApart;
  [[nodiscard]] static __device__ int own_row() {
    return static_cast<int>(threadIdx.x) % warpgroup::kThreads / kChunks;
  }
  int places_[kEach];
};

/// Arrives at the barrier once all loads that this thread started have ended.
__device__ inline void arrive_after_loads(std::uint64_t* barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(tma::shared_address(barrier))
      : "memory");
}

/// A barrier of the loading threads, which have looked up the next rows' places. Two lists of
/// places in turn need one barrier for each list.
__device__ inline void sync_loaders() {
  asm volatile("bar.sync 2, %0;" ::"n"(warpgroup::kThreads) : "memory");
}
__device__ inline void swap(int*& a, int*& b) {
  int* const before = a;
  a = b;
  b = before;
}

/// All loading threads: begin_slot() for so many bytes by the copy engine beside gathered boxes.
template <class Shared>
__device__ std::uint64_t* begin_gathered_slot(const Shared& shared, const SlotCursor& at,
                                              unsigned bytes) {
  Barriers& barriers = shared.barriers();
  tma::wait(&barriers.empty[at.slot], at.round ^ 1U);
  if (leads_loads()) tma::arrive_for(&barriers.full[at.slot], bytes);
  return &barriers.full[at.slot];
}

}  // namespace hyperslab::ops::cuda::experts
