// SPDX-License-Identifier: Apache-2.0
// Products on Hopper whose results pass through an activation, or its derivative, on their way to
// memory. Warpgroups of a block have roles: one thread of the last has the copy engine bring tiles
// of both operands, two multiply them, and one takes their products, rounded, through the function
// while the two are at the next tile. A block stays on its multiprocessor and goes from tile to
// tile. Two blocks, a cluster, have neighboring rows and the same columns: each brings half of the
// right operand, for both.
#pragma once

#include "activation_product.hpp"
#include "checks.hpp"
#include "cuda/tools/activation.cuh"
#include "cuda/tools/handles.hpp"
#include "cuda/tools/library_workspace.hpp"
#include "cuda/tools/tensor_map.hpp"
#include "cuda/tools/warpgroup.cuh"
#include "cuda/tools/words.cuh"

namespace hyperslab::ops::cuda::activation_product {

inline constexpr int kMultipliers =
    2;  // warpgroups that multiply; then comes the one that finishes
inline constexpr int kThreads = (kMultipliers + 2) * warpgroup::kThreads;
inline constexpr int kTileRows = kActivationProductRows;
inline constexpr int kTileColumns = kActivationProductColumns;
inline constexpr int kDepth = warpgroup::kSwizzled;  // columns of the left operand of a product
inline constexpr int kSlots = 4;  // tiles of both operands that are there or on their way
inline constexpr int kPanelBytes = kTileRows * kDepth * 2;  // kDepth columns of products
inline constexpr int kPanels = kTileColumns / kDepth;
inline constexpr int kFinishers = 4;                          // warps
inline constexpr int kFinisherRows = kTileRows / kFinishers;  // rows of each finisher warp
static_assert(kTileRows == kMultipliers * warpgroup::kRows);

using Left = warpgroup::Tile<kDepth>;         // for one warpgroup
using Right = warpgroup::Tile<kTileColumns>;  // by rows, or so many rows of kDepth columns

struct Barriers {
  std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];        ///< arrivals of the multipliers of both blocks
  std::uint64_t written[kFinishers];  ///< arrivals of the two warps that multiply a finisher's rows
  std::uint64_t read[kFinishers];     ///< arrival of the finisher that has read them
};

struct Shared {
  static constexpr int kLeft = kMultipliers * Left::kBytes;
  static constexpr int kSlot = kLeft + Right::kBytes;
  static constexpr int kProductsAt = kSlots * kSlot;
  static constexpr int kSumsAt = kProductsAt + kPanels * kPanelBytes;
  static constexpr int kBarriersAt = kSumsAt + kFinishers * kTileColumns * 4;
  static constexpr int kBytes = kBarriersAt + static_cast<int>(sizeof(Barriers));

  unsigned char* memory;
  [[nodiscard]] __device__ unsigned char* left(int slot) const { return memory + slot * kSlot; }
  [[nodiscard]] __device__ unsigned char* right(int slot) const { return left(slot) + kLeft; }
  [[nodiscard]] __device__ float* sums() const {
    return reinterpret_cast<float*>(memory + kSumsAt);
  }
  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kBarriersAt);
  }
  /// Eight elements of the products: rows of a panel of 128 bytes, swizzled as warpgroup::Tile.
  [[nodiscard]] __device__ unsigned char* product(int row, int vector) const {
    return memory + kProductsAt + vector / 8 * kPanelBytes + row * kDepth * 2 +
           (vector % 8 ^ row % 8) * 16;
  }
};

/// The right operand: (depth, columns), or (columns, depth), whose transpose it is.
enum class Side : bool { by_rows, by_columns };

template <class T>
struct ProductCall {
  CUtensorMap left_boxes;   ///< warpgroup::kRows rows of kDepth columns
  CUtensorMap right_boxes;  ///< by rows kDepth / 2 of kDepth columns, else half a tile's columns
  const T* bias;            ///< (columns), added before products are rounded, or null
  int rows;
  int columns;
  int steps;         ///< products of depth kDepth that a tile adds up
  int column_tiles;  ///< tiles that a row is cut in
  int pairs;         ///< pairs of tiles of a cluster; pairs of the same rows follow each other
};

/// Which tiles a block has.
struct TileSchedule {
  unsigned rank;  ///< in its cluster
  int first;      ///< pair of tiles
  int stride;

  __device__ TileSchedule()
      : rank(tma::block_in_cluster()),
        first(static_cast<int>(blockIdx.x) / 2),
        stride(static_cast<int>(gridDim.x) / 2) {}
};
template <class T>
struct TileOf {
  int row_tile;
  int first_row;
  int first_column;

  __device__ TileOf(const ProductCall<T>& call, const TileSchedule& schedule, int pair)
      : row_tile(2 * (pair / call.column_tiles) + static_cast<int>(schedule.rank)),
        first_row(row_tile * kTileRows),
        first_column(pair % call.column_tiles * kTileColumns) {}
};

/// One thread.
template <Side kSide, class T>
__device__ void load_tiles(const ProductCall<T>& call, const Shared& shared,
                           const TileSchedule& schedule) {
  Barriers& barriers = shared.barriers();
  const int half = static_cast<int>(schedule.rank);
  int step = 0;
  for (int pair = schedule.first; pair < call.pairs; pair += schedule.stride) {
    const TileOf<T> tile(call, schedule, pair);
    for (int i = 0; i < call.steps; ++i, ++step) {
      const int slot = step % kSlots;
      std::uint64_t* const full = &barriers.full[slot];
      tma::wait(&barriers.empty[slot], (step / kSlots + 1) % 2);
      tma::arrive_for(full, Shared::kSlot);
#pragma unroll
      for (int part = 0; part < kMultipliers; ++part) {
        tma::copy(shared.left(slot) + part * Left::kBytes, call.left_boxes, i * kDepth,
                  tile.first_row + part * warpgroup::kRows, full);
      }
      if constexpr (kSide == Side::by_columns) {
        tma::copy_to_pair(shared.right(slot) + half * Right::kBytes / 2, call.right_boxes,
                          i * kDepth, tile.first_column + half * kTileColumns / 2, full);
        continue;
      }
      const int first = half * kDepth / 2;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        tma::copy_to_pair(shared.right(slot) + panel * Right::kPartBytes + first * kDepth * 2,
                          call.right_boxes, tile.first_column + panel * kDepth, i * kDepth + first,
                          full);
      }
    }
  }
}

/// Rounds a warp's products into shared memory: 16 rows from `row` on.
template <class T>
__device__ void write_products(const Shared& shared, int row, const float (&sums)[24][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  row += lane % 16;
#pragma unroll
  for (int block = 0; block < kTileColumns / 8; block += 2) {
    tma::store_matrices(
        tma::shared_address(shared.product(row, block + lane / 16)),
        {pack<T>(sums[block][0], sums[block][1]), pack<T>(sums[block][2], sums[block][3]),
         pack<T>(sums[block + 1][0], sums[block + 1][1]),
         pack<T>(sums[block + 1][2], sums[block + 1][3])});
  }
}

/// A lane's columns of the bias, in pairs. It is added at the end: adding it first would make ptxas
/// serialize the products (its warning C7517).
template <class T>
class BiasColumns {
 public:
  __device__ void load(const ProductCall<T>& call, const TileOf<T>& tile) {
    const int column = tile.first_column + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int block = 0; block < kTileColumns / 8; ++block) {
      const int at = column + 8 * block;
      words_[block] =
          at < call.columns ? *reinterpret_cast<const std::uint32_t*>(call.bias + at) : 0;
    }
  }
  __device__ void add_to(float (&sums)[kTileColumns / 8][4]) const {
#pragma unroll
    for (int block = 0; block < kTileColumns / 8; ++block) {
      const float2 pair = unpack<T>(words_[block]);
      sums[block][0] += pair.x;
      sums[block][1] += pair.y;
      sums[block][2] += pair.x;
      sums[block][3] += pair.y;
    }
  }

 private:
  std::uint32_t words_[kTileColumns / 8];
};

/// Warps of warpgroups 0 and 1: sixteen rows of every tile each.
template <Side kSide, bool kBias, class T>
__device__ void multiply_slots(const ProductCall<T>& call, const Shared& shared,
                               const TileSchedule& schedule) {
  Barriers& barriers = shared.barriers();
  const int warp = warpgroup::uniform(static_cast<int>(threadIdx.x) / 32);
  const int part = warp / 4;
  const bool leads = threadIdx.x % 32 == 0;
  float sums[kTileColumns / 8][4];
  [[maybe_unused]] BiasColumns<T> bias;
  // Two warps of each warpgroup report to the two blocks, which wait for both warpgroups of both.
  const auto release = [&](int step) {
    if (leads && warp % 4 < 2) tma::arrive_in(&barriers.empty[step % kSlots], warp % 4);
  };
  int step = 0;
  unsigned parity = 1;
  for (int pair = schedule.first; pair < call.pairs; pair += schedule.stride, parity ^= 1U) {
    if constexpr (kBias) bias.load(call, TileOf<T>(call, schedule, pair));
    for (int i = 0; i < call.steps; ++i, ++step) {
      const int slot = step % kSlots;
      const Left left(shared.left(slot) + part * Left::kBytes);
      tma::wait(&barriers.full[slot], step / kSlots % 2);
      warpgroup::fence();
      if constexpr (kSide == Side::by_columns) {
        warpgroup::multiply_tiles<T>(left, Left(shared.right(slot)), i > 0, sums);
      } else {
        warpgroup::multiply_tiles<T>(left, Right(shared.right(slot)), i > 0, sums);
      }
      warpgroup::commit();
      if (i == 0) continue;
      warpgroup::wait<1>();
      release(step - 1);
    }
    warpgroup::wait<0>();
    warpgroup::pin(sums);
    release(step - 1);
    if constexpr (kBias) bias.add_to(sums);
    tma::wait(&barriers.read[warp / 2], parity);
    write_products<T>(shared, warp * 16, sums);
    __syncwarp();
    if (leads) tma::arrive(&barriers.written[warp / 2]);
  }
}

/// 16 bytes, or nothing.
__device__ inline void store_if(bool there, void* to, const std::uint32_t (&words)[4]) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "@there st.global.v4.u32 [%4], {%0, %1, %2, %3};\n}" ::"r"(words[0]),
      "r"(words[1]), "r"(words[2]), "r"(words[3]), "l"(to), "r"(static_cast<int>(there)));
}

/// Which elements of a tile a lane of a finishing warp has: of each panel eight columns of every
/// fourth of the warp's rows.
struct FinisherLane {
  static constexpr int kRowsApart = 4;
  static constexpr int kRows = kFinisherRows / kRowsApart;

  int warp = static_cast<int>(threadIdx.x) % warpgroup::kThreads / 32;
  int row = warp * kFinisherRows + static_cast<int>(threadIdx.x) % 32 / 8;  ///< the first
  int vector = static_cast<int>(threadIdx.x) % 8;                           ///< which eight columns

  /// The i-th row's.
  [[nodiscard]] __device__ uint4 product(const Shared& shared, int panel, int i) const {
    return *reinterpret_cast<const uint4*>(
        shared.product(row + kRowsApart * i, 8 * panel + vector));
  }
};

/// The position of a lane's elements of a panel in a matrix of the product's shape.
struct FinisherLines {
  Dim first;
  int stride;
  int there;  ///< rows from the lane's first on; none in columns beyond the matrix

  template <class T>
  __device__ FinisherLines(const ProductCall<T>& call, const TileOf<T>& tile,
                           const FinisherLane& lane, int panel)
      : stride(FinisherLane::kRowsApart * call.columns) {
    const int row = tile.first_row + lane.row;
    const int column = tile.first_column + panel * kDepth + 8 * lane.vector;
    first = static_cast<Dim>(row) * call.columns + column;
    there = column < call.columns ? call.rows - row : 0;
  }
  [[nodiscard]] __device__ bool has(int i) const { return FinisherLane::kRowsApart * i < there; }
  [[nodiscard]] __device__ Dim at(int i) const { return first + i * stride; }
};

/// Finisher: a class with Call, Element, kSide and kBias, that warpgroup 2 makes of a call, Shared
/// and a TileSchedule, and that has run().
template <class Finisher>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    activation_product_kernel(const __grid_constant__ typename Finisher::Call call) {
  using T = typename Finisher::Element;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared = {memory};
  const TileSchedule schedule;
  Barriers& barriers = shared.barriers();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      tma::init(&barriers.full[i], 1);
      tma::init(&barriers.empty[i], 2 * kMultipliers);
    }
    for (int i = 0; i < kFinishers; ++i) {
      tma::init(&barriers.written[i], 2);
      tma::init(&barriers.read[i], 1);
    }
    tma::publish_init();
  }
  __syncthreads();
  tma::sync_cluster();
  overlap();
  wait_for_earlier();
  const int role = warpgroup::uniform(static_cast<int>(threadIdx.x) / warpgroup::kThreads);
  if (role < kMultipliers) {
    warpgroup::take_registers<160>();
    multiply_slots<Finisher::kSide, Finisher::kBias, T>(call, shared, schedule);
  } else if (role == kMultipliers) {
    warpgroup::take_registers<160>();
    Finisher(call, shared, schedule).run();
  } else {
    warpgroup::give_registers<32>();
    if (threadIdx.x % warpgroup::kThreads == 0)
      load_tiles<Finisher::kSide, T>(call, shared, schedule);
  }
  __syncwarp();
  tma::sync_cluster();  // a block's barriers stay until both have ended
}

template <class T>
inline constexpr CUtensorMapDataType kBoxType =
    std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/// A contiguous matrix in boxes of so many rows and kDepth columns.
template <class T>
CUtensorMap boxes_of(const char* op, CView matrix, int rows) {
  const Dim columns = matrix.shape().back();
  return tensor_map(op, matrix.raw(),
                    {.type = kBoxType<T>,
                     .sizes = {columns, leading(matrix.shape())},
                     .strides_bytes = {columns * static_cast<Dim>(sizeof(T))},
                     .box = {kDepth, rows},
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

/// left: (..., depth); right: as kSide says.
template <Side kSide, class T>
void set_operands(const char* op, CView left, CView right, ProductCall<T>& call) {
  const bool by_rows = kSide == Side::by_rows;
  const Dim rows = leading(left.shape());
  const Dim columns = right.shape()[by_rows ? 1 : 0];
  call.left_boxes = boxes_of<T>(op, left, warpgroup::kRows);
  call.right_boxes = boxes_of<T>(op, right, by_rows ? kDepth / 2 : kTileColumns / 2);
  call.rows = static_cast<int>(rows);
  call.columns = static_cast<int>(columns);
  call.steps = static_cast<int>(ceil_divide(left.shape().back(), kDepth));
  call.column_tiles = static_cast<int>(ceil_divide(columns, kTileColumns));
  const auto row_tiles = static_cast<int>(ceil_divide(rows, kTileRows));
  call.pairs = (row_tiles + 1) / 2 * call.column_tiles;
}

template <class Finisher>
void launch(Context& ctx, const char* op, const typename Finisher::Call& call) {
  constexpr auto kKernel = activation_product_kernel<Finisher>;
  [[maybe_unused]] static const bool asked = [op] {
    check_cuda(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::kBytes),
        op, "cudaFuncSetAttribute");
    return true;
  }();
  const int clusters = std::min(call.pairs, multiprocessors() / 2);
  launch_waiting(ctx, op, call.rows, kKernel,
                 {static_cast<unsigned>(2 * clusters), kThreads, Shared::kBytes}, call);
}

}  // namespace hyperslab::ops::cuda::activation_product
