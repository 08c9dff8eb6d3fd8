// SPDX-License-Identifier: Apache-2.0
// Products of each expert's rows by its matrix, and of their gradients.
#include "gathered_boxes.cuh"
#include "warpgroup_tiles.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace experts;

template <class T>
struct RowsCall {
  CUtensorMap left_boxes;   ///< kTileRows rows of kDepth columns; none of gathered rows
  GatheredMatrix gathered;  ///< the rows in place of left_boxes
  /// Boxes in (1, experts, outputs, inputs): kDepth inputs of a tile's columns, or kDepth outputs.
  CUtensorMap right_boxes;
  const std::int32_t* first_rows;
  T* y;
  int experts;
  int rows;
  int columns;
  int steps;  ///< slots that a tile adds up
  int column_tiles;
};

template <int kColumns>
struct Work {
  const RowCounts& counts;
  int experts;
  int column_tiles;

  template <class T>
  __device__ Work(const RowsCall<T>& call, const Shared<kColumns>& shared)
      : counts(shared.counts()), experts(call.experts), column_tiles(call.column_tiles) {}
  [[nodiscard]] __device__ int tiles() const { return counts.starts[experts] * column_tiles; }
  [[nodiscard]] __device__ ExpertTile at(int tile) const {
    return expert_tile(counts.first_rows, counts.starts, experts, column_tiles, kTileRows, tile);
  }
};

/// One thread. kRight: the sums are over a matrix's columns, its inputs, or over its rows. Beyond
/// an expert's matrix come zeros.
template <Over kRight, int kColumns, class T>
__device__ void load_matrix(const RowsCall<T>& call, const Shared<kColumns>& shared,
                            const ExpertTile& tile, int step, int slot, std::uint64_t* full) {
  const int column = tile.column_tile * kColumns;
  const std::uint32_t right = tma::shared_address(shared.right(slot));
  if constexpr (kRight == Over::columns) {
    tma::copy(right, call.right_boxes, {step * kDepth, column, tile.expert, 0}, full);
  } else {
#pragma unroll
    for (int part = 0; part < kColumns / kDepth; ++part) {
      tma::copy(right + part * Shared<kColumns>::Right::kPartBytes, call.right_boxes,
                {column + part * kDepth, step * kDepth, tile.expert, 0}, full);
    }
  }
}

/// One thread. Beyond an expert's rows come others' rows, whose products are not stored.
template <Over kRight, int kColumns, class T>
__device__ void load_tiles(const RowsCall<T>& call, const Shared<kColumns>& shared) {
  const Work<kColumns> work(call, shared);
  SlotCursor at;
  const int tiles = work.tiles();
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const ExpertTile here = work.at(tile);
    for (int i = 0; i < call.steps; ++i, at.advance()) {
      std::uint64_t* const full = begin_slot(shared, at);
      tma::copy(shared.left(at.slot), call.left_boxes, i * kDepth, here.first_row, full);
      load_matrix<kRight>(call, shared, here, i, at.slot, full);
    }
  }
}

/// load_tiles() of gathered rows, by all threads that load. Each looks up one row of the next tile
/// while they load a tile.
template <Over kRight, int kColumns, class T>
__device__ void gather_tiles(const RowsCall<T>& call, const Shared<kColumns>& shared) {
  static_assert(kTileRows == warpgroup::kThreads);
  const Work<kColumns> work(call, shared);
  const int own = static_cast<int>(threadIdx.x) % warpgroup::kThreads;
  const int tiles = work.tiles();
  // The last row stands for those beyond, whose products are not stored.
  const auto pair_of = [&](int tile) {
    const ExpertTile at = work.at(min(tile, tiles - 1));
    return __ldg(call.gathered.pairs + at.first_row + min(own, at.rows - 1));
  };
  SlotCursor at;
  int* places = shared.places();
  int* others = places + kTileRows;
  int tile = static_cast<int>(blockIdx.x);
  int pair = tile < tiles ? pair_of(tile) : 0;
  for (; tile < tiles; tile += static_cast<int>(gridDim.x)) {
    places[own] = pair / call.gathered.divisor * call.gathered.chunks;
    sync_loaders();
    pair = pair_of(tile + static_cast<int>(gridDim.x));
    const GatheredBox<kTileRows> rows([places](int row) { return places[row]; });
    const ExpertTile here = work.at(tile);
    for (int i = 0; i < call.steps; ++i, at.advance()) {
      std::uint64_t* const full = begin_gathered_slot(shared, at, Shared<kColumns>::Right::kBytes);
      if (leads_loads()) load_matrix<kRight>(call, shared, here, i, at.slot, full);
      rows.load(call.gathered, i * kChunks, shared.left(at.slot));
      arrive_after_loads(full);
    }
    swap(places, others);
  }
}

/// Rounds a warp's 16 rows of a tile and stores those that are there, 64 columns at a time.
template <int kColumns, class T>
__device__ void store_rows(const RowsCall<T>& call, const Shared<kColumns>& shared,
                           const ExpertTile& tile, int warp, const float (&sums)[kColumns / 8][4]) {
  unsigned char* const staged = shared.staged(warp);
  const auto chunk = [staged](int row, int vector) {
    return staged + row * kDepth * 2 + (vector ^ row % 8) * 16;
  };
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = tile.rows - warp * 16;
  const int column = tile.column_tile * kColumns + lane % 8 * 8;
  T* const y = call.y + static_cast<Dim>(tile.first_row + warp * 16) * call.columns + column;
#pragma unroll
  for (int panel = 0; panel < kColumns / kDepth; ++panel) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int block = panel * 8 + i;
      tma::store_matrices(
          tma::shared_address(chunk(lane % 16, i + lane / 16)),
          {pack<T>(sums[block][0], sums[block][1]), pack<T>(sums[block][2], sums[block][3]),
           pack<T>(sums[block + 1][0], sums[block + 1][1]),
           pack<T>(sums[block + 1][2], sums[block + 1][3])});
    }
    __syncwarp();
    const bool there = column + panel * kDepth < call.columns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 8 + 4 * i;
      if (!there || row >= rows) continue;
      *reinterpret_cast<uint4*>(y + static_cast<Dim>(row) * call.columns + panel * kDepth) =
          *reinterpret_cast<const uint4*>(chunk(row, lane % 8));
    }
    __syncwarp();
  }
}

/// Warps of the warpgroups that multiply.
template <Over kRight, int kColumns, Gathers kGathers, class T>
__device__ void multiply_rows(const RowsCall<T>& call, const Shared<kColumns>& shared) {
  const Work<kColumns> work(call, shared);
  const int warp = warpgroup::uniform(static_cast<int>(threadIdx.x) / 32);
  SlotCursor at;
  float sums[kColumns / 8][4];
  const int tiles = warpgroup::uniform(work.tiles());
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const auto mend = [](int, int) {
      if constexpr (kGathers != Gathers::none) warpgroup::publish_writes();
    };
    sum_slots<T, Over::columns, kRight>(shared, warp / 4, call.steps, at, mend, sums);
    store_rows<kColumns>(call, shared, work.at(tile), warp, sums);
  }
}

template <Over kRight, int kColumns, Gathers kGathers, class T>
__global__ void __launch_bounds__(kThreads, 1)
    expert_rows_kernel(const __grid_constant__ RowsCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kColumns> shared = {memory};
  if (threadIdx.x == 0) init_barriers(shared.barriers(), kGathers);
  overlap();
  wait_for_earlier();
  read_counts(call.first_rows, call.experts, call.rows, shared.counts());
  const int role = warpgroup::uniform(static_cast<int>(threadIdx.x) / warpgroup::kThreads);
  if (role < kMultipliers) {
    warpgroup::take_registers<kMultiplierRegisters>();
    multiply_rows<kRight, kColumns, kGathers>(call, shared);
  } else {
    warpgroup::give_registers<kLoaderRegisters>();
    if constexpr (kGathers != Gathers::none) {
      gather_tiles<kRight>(call, shared);
    } else if (leads_loads()) {
      load_tiles<kRight>(call, shared);
    }
  }
}

/// weights: (experts * outputs, inputs); a box has kDepth columns of so many rows of one expert.
template <class T>
CUtensorMap boxes_of_matrices(const char* op, CView weights, Dim experts, Dim rows) {
  const Dim inputs = weights.shape()[1];
  const Dim outputs = weights.shape()[0] / experts;
  const Dim row_bytes = inputs * static_cast<Dim>(sizeof(T));
  return tensor_map(
      op, weights.raw(),
      {.type = kBoxType<T>,
       .sizes = {inputs, outputs, experts, 1},
       .strides_bytes = {row_bytes, outputs * row_bytes, experts * outputs * row_bytes},
       .box = {kDepth, rows, 1, 1},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

/// y[r] = the product of x[r], whose expert's matrix is summed over kRight.
template <Over kRight, int kColumns, Gathers kGathers = Gathers::none>
void multiply(Context& ctx, const char* op, const GatheredRows& x, CView weights, CView first_rows,
              View y) {
  with_product_element(x.values.dtype(), op, [&]<class T>(T) {
    const Dim experts = first_rows.numel() - 1;
    const Dim rows = leading(y.shape());
    const Dim columns = y.shape().back();
    RowsCall<T> call = {};
    if constexpr (kGathers == Gathers::none) {
      call.left_boxes = boxes_of_rows<T>(op, x.values, kTileRows);
    } else {
      call.gathered = gathered_matrix(x);
    }
    call.right_boxes =
        boxes_of_matrices<T>(op, weights, experts, kRight == Over::columns ? kColumns : kDepth);
    call.first_rows = first_rows.data<std::int32_t>();
    call.y = y.data<T>();
    call.experts = static_cast<int>(experts);
    call.rows = static_cast<int>(rows);
    call.columns = static_cast<int>(columns);
    call.steps = static_cast<int>(ceil_divide(x.values.shape().back(), kDepth));
    call.column_tiles = static_cast<int>(ceil_divide(columns, kColumns));
    const Dim most_tiles = (ceil_divide(rows, kTileRows) + experts) * call.column_tiles;
    launch_tiles<expert_rows_kernel<kRight, kColumns, kGathers, T>, Shared<kColumns>::kBytes>(
        ctx, op, rows, most_tiles, call);
  });
}

constexpr const char* kForward = "experts_forward";
constexpr const char* kBackward = "experts_backward_input";

}  // namespace

void gathered_experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows,
                              View y) {
  multiply<Over::columns, kExpertColumns, Gathers::left>(ctx, kForward, x, weights, first_rows, y);
}
void wide_experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows,
                          View y) {
  multiply<Over::columns, kExpertColumns>(ctx, kForward, x, weights, first_rows, y);
}
void narrow_experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows,
                            View y) {
  multiply<Over::columns, kFewerExpertColumns>(ctx, kForward, x, weights, first_rows, y);
}
void gathered_experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights,
                                     CView first_rows, View dx) {
  multiply<Over::rows, kExpertColumns, Gathers::left>(ctx, kBackward, dy, weights, first_rows, dx);
}
void wide_experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights,
                                 CView first_rows, View dx) {
  multiply<Over::rows, kExpertColumns>(ctx, kBackward, dy, weights, first_rows, dx);
}
void narrow_experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights,
                                   CView first_rows, View dx) {
  multiply<Over::rows, kFewerExpertColumns>(ctx, kBackward, dy, weights, first_rows, dx);
}

}  // namespace hyperslab::ops::cuda
