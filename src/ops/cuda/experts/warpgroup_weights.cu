// SPDX-License-Identifier: Apache-2.0
// Gradients of the experts' matrices: sums over each expert's rows.
#include "gathered_boxes.cuh"
#include "warpgroup_tiles.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace experts;

template <class T>
struct WeightsCall {
  CUtensorMap left_boxes;   ///< kDepth rows of kDepth columns of dy
  CUtensorMap right_boxes;  ///< likewise, x
  GatheredMatrix gathered;  ///< the rows in place of one of them
  const std::int32_t* first_rows;
  void* dweights;
  bool accumulate;
  int experts;
  int rows;
  int outputs;
  int inputs;
  int row_tiles;
  int column_tiles;
  [[nodiscard]] __device__ int tiles() const { return experts * row_tiles * column_tiles; }
  [[nodiscard]] __device__ WeightTile at(int tile) const {
    return weight_tile(row_tiles, column_tiles, tile);
  }
};

/// One thread: the boxes of an operand from `column` of `row` on.
template <int kColumns>
__device__ void load_boxes(const CUtensorMap& boxes, int column, int row, unsigned char* to,
                           std::uint64_t* full) {
#pragma unroll
  for (int part = 0; part < kColumns / kDepth; ++part) {
    tma::copy(to + part * Left::kPartBytes, boxes, column + part * kDepth, row, full);
  }
}

/// One thread. After an expert's last row come others' rows, which mend_rows() makes zeros.
template <int kColumns, class T>
__device__ void load_tiles(const WeightsCall<T>& call, const Shared<kColumns>& shared) {
  const RowCounts& counts = shared.counts();
  SlotCursor at;
  for (int tile = static_cast<int>(blockIdx.x); tile < call.tiles();
       tile += static_cast<int>(gridDim.x)) {
    const WeightTile here = call.at(tile);
    const int end = counts.first_rows[here.expert + 1];
    for (int row = counts.first_rows[here.expert]; row < end; row += kDepth, at.advance()) {
      std::uint64_t* const full = begin_slot(shared, at);
      load_boxes<kTileRows>(call.left_boxes, here.row_tile * kTileRows, row, shared.left(at.slot),
                            full);
      load_boxes<kColumns>(call.right_boxes, here.column_tile * kColumns, row,
                           shared.right(at.slot), full);
    }
  }
}

/// All threads that load: kParts boxes of gathered rows side by side.
template <int kParts>
__device__ void gather_boxes(const GatheredMatrix& from, const GatheredBox<kDepth>& rows,
                             int column, unsigned char* to) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    rows.load(from, column / 8 + part * kChunks, to + part * Left::kPartBytes);
  }
}

/// Neighbouring rows of a tile's expert, of which the loading threads find the places at once.
template <class T>
struct RowBlock {
  static constexpr int kRows = 8 * kDepth;
  static constexpr int kEach = kRows / warpgroup::kThreads;

  int tile;
  int row;  ///< the first one
  int end;  ///< the expert's last row, plus one

  /// The first block at or after this tile; without rows at the end.
  __device__ void find(const WeightsCall<T>& call, const RowCounts& counts) {
    for (; tile < call.tiles(); tile += static_cast<int>(gridDim.x)) {
      const int expert = call.at(tile).expert;
      row = counts.first_rows[expert];
      end = counts.first_rows[expert + 1];
      if (row < end) return;
    }
  }
  __device__ void advance(const WeightsCall<T>& call, const RowCounts& counts) {
    row += kRows;
    if (row < end) return;
    tile += static_cast<int>(gridDim.x);
    find(call, counts);
  }
  /// Reads this thread's pairs. The last row stands for those beyond, which mend_rows() clears.
  __device__ void read_pairs(const GatheredMatrix& from, int (&pairs)[kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int own = row + static_cast<int>(threadIdx.x) % warpgroup::kThreads;
      pairs[i] = __ldg(from.pairs + min(own + i * warpgroup::kThreads, end - 1));
    }
  }
  static __device__ void store_places(const GatheredMatrix& from, const int (&pairs)[kEach],
                                      int* places) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      places[static_cast<int>(threadIdx.x) % warpgroup::kThreads + i * warpgroup::kThreads] =
          pairs[i] / from.divisor * from.chunks;
    }
  }
};

/// One slot of a tile whose rows have these places.
template <Gathers kGathers, int kColumns, class T>
__device__ void gather_slot(const WeightsCall<T>& call, const Shared<kColumns>& shared,
                            const WeightTile& tile, int row, const int* places, int slot,
                            std::uint64_t* full) {
  const GatheredBox<kDepth> rows([places](int own) { return places[own]; });
  const int left_column = tile.row_tile * kTileRows;
  const int right_column = tile.column_tile * kColumns;
  if constexpr (kGathers == Gathers::left) {
    if (leads_loads()) {
      load_boxes<kColumns>(call.right_boxes, right_column, row, shared.right(slot), full);
    }
    gather_boxes<kMultipliers>(call.gathered, rows, left_column, shared.left(slot));
  } else {
    if (leads_loads()) {
      load_boxes<kTileRows>(call.left_boxes, left_column, row, shared.left(slot), full);
    }
    gather_boxes<kColumns / kDepth>(call.gathered, rows, right_column, shared.right(slot));
  }
  arrive_after_loads(full);
}

/// load_tiles() with one operand of gathered rows, by all threads that load. They read the pairs of
/// the next rows while they load a block, as what they read is far away.
template <Gathers kGathers, int kColumns, class T>
__device__ void gather_tiles(const WeightsCall<T>& call, const Shared<kColumns>& shared) {
  using Block = RowBlock<T>;
  constexpr unsigned kOtherBytes =
      kGathers == Gathers::left ? Shared<kColumns>::Right::kBytes : Shared<kColumns>::kLeft;
  int* places = shared.places();
  int* others = places + Block::kRows;
  SlotCursor at;
  Block block = {static_cast<int>(blockIdx.x), 0, 0};
  block.find(call, shared.counts());
  int pairs[Block::kEach] = {};
  if (block.tile < call.tiles()) block.read_pairs(call.gathered, pairs);
  while (block.tile < call.tiles()) {
    Block::store_places(call.gathered, pairs, places);
    sync_loaders();
    Block next = block;
    next.advance(call, shared.counts());
    if (next.tile < call.tiles()) next.read_pairs(call.gathered, pairs);
    const WeightTile here = call.at(block.tile);
    const int rows = min(block.end - block.row, Block::kRows);
    for (int first = 0; first < rows; first += kDepth, at.advance()) {
      std::uint64_t* const full = begin_gathered_slot(shared, at, kOtherBytes);
      gather_slot<kGathers>(call, shared, here, block.row + first, places + first, at.slot, full);
    }
    block = next;
    swap(places, others);
  }
}

/// All threads that multiply: zeros in both operands' rows from `rows` on. Swizzling keeps an
/// element in its row of 128 bytes, so they are one range of bytes of each part.
template <int kColumns>
__device__ void mend_rows(const Shared<kColumns>& shared, int slot, int rows) {
  constexpr int kParts = kMultipliers + kColumns / kDepth;
  constexpr int kThreadsThatMend = kMultipliers * warpgroup::kThreads;
  constexpr int kPerRow = kDepth * 2 / 16;  // vectors
  const int vectors = (kDepth - rows) * kPerRow;
  for (int part = 0; part < kParts; ++part) {
    auto* const first = reinterpret_cast<uint4*>(shared.left(slot) + part * Left::kPartBytes);
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kThreadsThatMend) {
      first[rows * kPerRow + i] = {0, 0, 0, 0};
    }
  }
  warpgroup::publish_writes();
  asm volatile("bar.sync 1, %0;" ::"n"(kThreadsThatMend) : "memory");
}

/// The elements of a tile that a lane stores: four neighbours in two rows of every second block of
/// eight columns, of even lanes the first one of two.
template <int kColumns, class Out>
struct LaneQuads {
  Out* first;
  Dim row_stride;  ///< between the two rows
  bool has_row[2];
  int columns;  ///< that are there from the first quad's block on

  template <class T>
  __device__ LaneQuads(const WeightsCall<T>& call, const WeightTile& tile, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = tile.row_tile * kTileRows + warp * 16 + lane / 4;
    const int block = tile.column_tile * kColumns + lane % 2 * 8;
    first = static_cast<Out*>(call.dweights) +
            (static_cast<Dim>(tile.expert) * call.outputs + row) * call.inputs + block +
            lane % 4 / 2 * 4;
    row_stride = static_cast<Dim>(8) * call.inputs;
    has_row[0] = row < call.outputs;
    has_row[1] = row + 8 < call.outputs;
    columns = call.inputs - block;
  }
  [[nodiscard]] __device__ bool has(int half, int pair) const {
    return has_row[half] && 16 * pair < columns;
  }
  [[nodiscard]] __device__ Out* at(int half, int pair) const {
    return first + half * row_stride + 16 * pair;
  }
};

/// A lane's quad of two blocks of sums, of which it has two neighbours each: lanes beside each
/// other exchange what the other one stores.
__device__ inline void take_quad(const float (&first)[4], const float (&second)[4], int half,
                                 float (&quad)[4]) {
  const bool is_odd = threadIdx.x % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float own = is_odd ? second[2 * half + i] : first[2 * half + i];
    const float others = is_odd ? first[2 * half + i] : second[2 * half + i];
    const float received = __shfl_xor_sync(0xFFFFFFFFU, others, 1);
    quad[i] = is_odd ? received : own;
    quad[2 + i] = is_odd ? own : received;
  }
}

/// Stores what no product reads again soon, so that operands stay in the L2 cache.
template <class Out>
__device__ void store_quad(Out* to, const float (&from)[4]) {
  Vec<Out, 4> raw;
#pragma unroll
  for (int i = 0; i < 4; ++i) raw.at[i] = from_real<Out>(from[i]);
  if constexpr (sizeof(raw) == 16) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&raw));
  } else {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&raw));
  }
}

/// Stores a warp's 16 rows of a tile, or adds them to what is there.
template <int kColumns, class Out, class T>
__device__ void store_sums(const WeightsCall<T>& call, const WeightTile& tile, int warp,
                           const float (&sums)[kColumns / 8][4]) {
  constexpr int kAtOnce = 4;  // quads whose former values are on their way together
  const LaneQuads<kColumns, Out> quads(call, tile, warp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int first = 0; first < kColumns / 16; first += kAtOnce) {
      float before[kAtOnce][4] = {};
      if (call.accumulate) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (quads.has(half, first + i)) load<4>(quads.at(half, first + i), before[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float quad[4];
        take_quad(sums[2 * (first + i)], sums[2 * (first + i) + 1], half, quad);
#pragma unroll
        for (int k = 0; k < 4; ++k) quad[k] += before[i][k];
        if (quads.has(half, first + i)) store_quad(quads.at(half, first + i), quad);
      }
    }
  }
}

/// The gradient of an expert without rows.
template <int kColumns, class Out, class T>
__device__ void store_zeros(const WeightsCall<T>& call, const WeightTile& tile, int warp) {
  constexpr float kZeros[4] = {0, 0, 0, 0};
  const LaneQuads<kColumns, Out> quads(call, tile, warp);
  for (int half = 0; half < 2; ++half) {
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      if (quads.has(half, pair)) store_quad(quads.at(half, pair), kZeros);
    }
  }
}

/// Warps of the warpgroups that multiply.
template <int kColumns, Gathers kGathers, class Out, class T>
__device__ void multiply_rows(const WeightsCall<T>& call, const Shared<kColumns>& shared) {
  const RowCounts& counts = shared.counts();
  const int warp = warpgroup::uniform(static_cast<int>(threadIdx.x) / 32);
  SlotCursor at;
  float sums[kColumns / 8][4];
  for (int tile = static_cast<int>(blockIdx.x); tile < call.tiles();
       tile += static_cast<int>(gridDim.x)) {
    const WeightTile here = call.at(tile);
    const int rows =
        warpgroup::uniform(counts.first_rows[here.expert + 1] - counts.first_rows[here.expert]);
    if (rows == 0) {
      if (!call.accumulate) store_zeros<kColumns, Out>(call, here, warp);
      continue;
    }
    const auto mend = [&](int i, int slot) {
      if constexpr (kGathers != Gathers::none) warpgroup::publish_writes();
      const int rest = rows - i * kDepth;
      if (rest < kDepth) mend_rows(shared, slot, rest);
    };
    sum_slots<T, Over::rows, Over::rows>(shared, warp / 4, tiles_of(rows, kDepth), at, mend, sums);
    store_sums<kColumns, Out>(call, here, warp, sums);
  }
}

template <int kColumns, Gathers kGathers, class Out, class T>
__global__ void __launch_bounds__(kThreads, 1)
    expert_weights_kernel(const __grid_constant__ WeightsCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kColumns> shared = {memory};
  if (threadIdx.x == 0) init_barriers(shared.barriers(), kGathers);
  overlap();
  wait_for_earlier();
  read_counts(call.first_rows, call.experts, call.rows, shared.counts());
  const int role = warpgroup::uniform(static_cast<int>(threadIdx.x) / warpgroup::kThreads);
  if (role < kMultipliers) {
    warpgroup::take_registers<kMultiplierRegisters>();
    multiply_rows<kColumns, kGathers, Out>(call, shared);
  } else {
    warpgroup::give_registers<kLoaderRegisters>();
    if constexpr (kGathers != Gathers::none) {
      gather_tiles<kGathers>(call, shared);
    } else if (leads_loads()) {
      load_tiles(call, shared);
    }
  }
}

constexpr const char* kName = "experts_backward_weight";

template <int kColumns, Gathers kGathers = Gathers::none>
void sum_products(Context& ctx, const GatheredRows& dy, const GatheredRows& x, CView first_rows,
                  Accumulate accumulate, View dweights) {
  with_product_element(x.values.dtype(), kName, [&]<class T>(T) {
    const Dim experts = first_rows.numel() - 1;
    WeightsCall<T> call = {};
    if constexpr (kGathers != Gathers::left) {
      call.left_boxes = boxes_of_rows<T>(kName, dy.values, kDepth);
    }
    if constexpr (kGathers != Gathers::right) {
      call.right_boxes = boxes_of_rows<T>(kName, x.values, kDepth);
    }
    if constexpr (kGathers != Gathers::none) {
      call.gathered = gathered_matrix(kGathers == Gathers::left ? dy : x);
    }
    call.first_rows = first_rows.data<std::int32_t>();
    call.dweights = dweights.raw();
    call.accumulate = accumulate == Accumulate::yes;
    call.experts = static_cast<int>(experts);
    call.rows = static_cast<int>(leading(x.matrix().shape()));
    call.outputs = static_cast<int>(dy.values.shape().back());
    call.inputs = static_cast<int>(x.values.shape().back());
    call.row_tiles = tiles_of(call.outputs, kTileRows);
    call.column_tiles = tiles_of(call.inputs, kColumns);
    const Dim tiles = experts * call.row_tiles * call.column_tiles;
    with_gradient(dweights, [&]<class Out>(const Out*) {
      launch_tiles<expert_weights_kernel<kColumns, kGathers, Out, T>, Shared<kColumns>::kBytes>(
          ctx, kName, call.rows, tiles, call);
    });
  });
}

}  // namespace

void gathered_left_experts_backward_weight(Context& ctx, const GatheredRows& dy,
                                           const GatheredRows& x, CView first_rows,
                                           Accumulate accumulate, View dweights) {
  sum_products<kExpertColumns, Gathers::left>(ctx, dy, x, first_rows, accumulate, dweights);
}
void gathered_right_experts_backward_weight(Context& ctx, const GatheredRows& dy,
                                            const GatheredRows& x, CView first_rows,
                                            Accumulate accumulate, View dweights) {
  sum_products<kExpertColumns, Gathers::right>(ctx, dy, x, first_rows, accumulate, dweights);
}
void wide_experts_backward_weight(Context& ctx, const GatheredRows& dy, const GatheredRows& x,
                                  CView first_rows, Accumulate accumulate, View dweights) {
  sum_products<kExpertColumns>(ctx, dy, x, first_rows, accumulate, dweights);
}
void narrow_experts_backward_weight(Context& ctx, const GatheredRows& dy, const GatheredRows& x,
                                    CView first_rows, Accumulate accumulate, View dweights) {
  sum_products<kFewerExpertColumns>(ctx, dy, x, first_rows, accumulate, dweights);
}

}  // namespace hyperslab::ops::cuda
