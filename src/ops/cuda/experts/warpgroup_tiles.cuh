// SPDX-License-Identifier: Apache-2.0
// Products of each expert's rows on Hopper. A block stays on its multiprocessor and goes from tile
// to tile: one thread of its last warpgroup has the copy engine bring tiles of both operands into
// slots, two warpgroups multiply them, 64 rows of the product each.
#pragma once

#include "checks.hpp"
#include "cuda/tools/handles.hpp"
#include "cuda/tools/tensor_map.hpp"
#include "cuda/tools/warpgroup.cuh"
#include "cuda/tools/words.cuh"
#include "product_table.hpp"
#include "tiles.hpp"

namespace hyperslab::ops::cuda::experts {

using warpgroup::Over;

inline constexpr int kMultipliers = 2;  // warpgroups that multiply; then comes the one that loads
inline constexpr int kMultiplierWarps = 4 * kMultipliers;
inline constexpr int kThreads = (kMultipliers + 1) * warpgroup::kThreads;
inline constexpr int kTileRows = kExpertTileRows;
inline constexpr int kDepth = warpgroup::kSwizzled;  // terms that a slot adds to each sum
inline constexpr int kSlots = 4;
inline constexpr int kLoaderRegisters = 40;
inline constexpr int kMultiplierRegisters = 232;
static_assert(kTileRows == kMultipliers * warpgroup::kRows);
static_assert(kDepth == warpgroup::kRows);  // so a step over rows has a tile's

using Left = warpgroup::Tile<kDepth>;  // for one warpgroup

struct Barriers {
  std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];  ///< an arrival of every warp that multiplies
};

/// The experts' first rows, and the tiles before each expert's, for all threads of a block.
struct RowCounts {
  int first_rows[kMostExperts + 1];
  int starts[kMostExperts + 1];
};

template <int kColumns>
struct Shared {
  using Right = warpgroup::Tile<kColumns>;
  static constexpr int kLeft = kMultipliers * Left::kBytes;
  static constexpr int kSlot = kLeft + Right::kBytes;
  static constexpr int kStagedBytes = 16 * kDepth * 2;  ///< 16 rows of 64 columns of one warp
  static constexpr int kStagedAt = kSlots * kSlot;
  static constexpr int kBarriersAt = kStagedAt + kMultiplierWarps * kStagedBytes;
  static constexpr int kPlacesAt = kBarriersAt + static_cast<int>(sizeof(Barriers));
  static constexpr int kPlaces = 2 * 8 * kDepth;  ///< two lists for gathered rows
  static constexpr int kCountsAt = kPlacesAt + kPlaces * static_cast<int>(sizeof(int));
  static constexpr int kBytes = kCountsAt + static_cast<int>(sizeof(RowCounts));
  static_assert(kBytes <= 227 * 1024);

  unsigned char* memory;
  [[nodiscard]] __device__ unsigned char* left(int slot) const { return memory + slot * kSlot; }
  [[nodiscard]] __device__ unsigned char* right(int slot) const { return left(slot) + kLeft; }
  [[nodiscard]] __device__ unsigned char* staged(int warp) const {
    return memory + kStagedAt + warp * kStagedBytes;
  }
  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kBarriersAt);
  }
  [[nodiscard]] __device__ int* places() const {
    return reinterpret_cast<int*>(memory + kPlacesAt);
  }
  [[nodiscard]] __device__ RowCounts& counts() const {
    return *reinterpret_cast<RowCounts*>(memory + kCountsAt);
  }
};

/// The thread of the loading warpgroup that asks the copy engine.
__device__ inline bool leads_loads() { return threadIdx.x % warpgroup::kThreads == 0; }

/// One thread, before a barrier of the block. With gathered rows all threads that load arrive, too.
__device__ inline void init_barriers(Barriers& barriers, Gathers gathers) {
  const unsigned arrivals = gathers == Gathers::none ? 1 : 1 + warpgroup::kThreads;
  for (int i = 0; i < kSlots; ++i) {
    tma::init(&barriers.full[i], arrivals);
    tma::init(&barriers.empty[i], kMultiplierWarps);
  }
  tma::publish_init();
}

/// A warp: counts the tiles before each expert's, whose rows must ascend.
__device__ inline void count_tiles(int experts, RowCounts& counts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const int rows = e < experts ? counts.first_rows[e + 1] - counts.first_rows[e] : 0;
    if (rows < 0) __trap();
    int sum = tiles_of(rows, kTileRows);
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (e < experts) counts.starts[e + 1] = before + sum;
    before += __shfl_sync(0xFFFFFFFFU, sum, 31);
  }
  if (lane == 0) counts.starts[0] = 0;
}

/// All threads of a block: reads the experts' first rows and counts their tiles. Rows that do not
/// ascend, or more of them than there are, end the kernel with an error. Ends with a barrier.
__device__ inline void read_counts(const std::int32_t* first_rows, int experts, int rows,
                                   RowCounts& counts) {
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += static_cast<int>(blockDim.x)) {
    counts.first_rows[e] = first_rows[e];
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    if (counts.first_rows[0] != 0 || counts.first_rows[experts] > rows) __trap();
    count_tiles(experts, counts);
  }
  __syncthreads();
}

/// A loader's or a multiplier's place in the row of slots.
struct SlotCursor {
  int slot = 0;
  unsigned round = 0;  ///< parity of the times that all slots have been used
  __device__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      round ^= 1U;
    }
  }
};

/// One thread: waits for a slot to be read, and lets it be full when all bytes have come.
template <class Shared>
__device__ std::uint64_t* begin_slot(const Shared& shared, const SlotCursor& at) {
  Barriers& barriers = shared.barriers();
  tma::wait(&barriers.empty[at.slot], at.round ^ 1U);
  tma::arrive_for(&barriers.full[at.slot], Shared::kSlot);
  return &barriers.full[at.slot];
}

/// Starts the products of a slot: the first ones of a tile overwrite the sums.
template <class T, Over kLeft, Over kRight, int kColumns>
__device__ void multiply_slot(const Shared<kColumns>& shared, int slot, int part, bool adds,
                              float (&sums)[kColumns / 8][4]) {
  const Left left(shared.left(slot) + part * Left::kBytes);
  warpgroup::fence();
#pragma unroll
  for (int step = 0; step < kDepth / warpgroup::kStep; ++step) {
    const std::uint64_t a = kLeft == Over::columns ? left.columns(step) : left.rows(step);
    std::uint64_t b;
    if constexpr (kRight == Over::columns) {
      b = Left(shared.right(slot)).columns(step);  // kColumns rows of kDepth columns
    } else {
      b = typename Shared<kColumns>::Right(shared.right(slot)).rows(step);
    }
    warpgroup::multiply_step_of<T, kLeft, kRight>(a, b, adds || step > 0, sums);
  }
  warpgroup::commit();
}

/// A warp has read a slot.
template <class Shared>
__device__ void release(const Shared& shared, int slot) {
  if (threadIdx.x % 32 == 0) tma::arrive(&shared.barriers().empty[slot]);
}

/// Sums the products of `steps` slots, at least one. mend(i, slot) runs before those of step i.
template <class T, Over kLeft, Over kRight, int kColumns, class Mend>
__device__ void sum_slots(const Shared<kColumns>& shared, int part, int steps, SlotCursor& at,
                          const Mend& mend, float (&sums)[kColumns / 8][4]) {
  int before = 0;
  for (int i = 0; i < steps; ++i) {
    tma::wait(&shared.barriers().full[at.slot], at.round);
    mend(i, at.slot);
    multiply_slot<T, kLeft, kRight>(shared, at.slot, part, i > 0, sums);
    if (i > 0) {
      warpgroup::wait<1>();
      release(shared, before);
    }
    before = at.slot;
    at.advance();
  }
  warpgroup::wait<0>();
  warpgroup::pin(sums);
  release(shared, before);
}

template <class T>
inline constexpr CUtensorMapDataType kBoxType =
    std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/// A matrix of all experts' rows, in boxes of so many rows and kDepth columns.
template <class T>
CUtensorMap boxes_of_rows(const char* op, CView matrix, Dim rows) {
  const Dim columns = matrix.shape().back();
  return tensor_map(op, matrix.raw(),
                    {.type = kBoxType<T>,
                     .sizes = {columns, leading(matrix.shape())},
                     .strides_bytes = {columns * static_cast<Dim>(sizeof(T))},
                     .box = {kDepth, rows},
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

/// Enqueues a kernel of as many blocks as there are multiprocessors, or tiles.
template <auto kernel, int kBytes, class Call>
void launch_tiles(Context& ctx, const char* op, Dim rows, Dim tiles, const Call& call) {
  [[maybe_unused]] static const bool asked = [op] {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               op, "cudaFuncSetAttribute");
    return true;
  }();
  const auto blocks = static_cast<unsigned>(std::min<Dim>(tiles, multiprocessors()));
  launch_waiting(ctx, op, rows, kernel, {blocks, kThreads, kBytes}, call);
}

/// Calls body(T()) for the two types that warpgroups multiply.
template <class Body>
void with_product_element(DType dtype, const char* op, Body&& body) {
  with_element(dtype, op, [&]<class T>(T element) {
    if constexpr (sizeof(T) == 2) {
      body(element);
    } else {
      throw Error(ExitCode::internal,
                  std::string(op) + ": warpgroups multiply elements of 16 bits");
    }
  });
}

}  // namespace hyperslab::ops::cuda::experts
