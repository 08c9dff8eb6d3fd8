// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "cuda/tools/handles.hpp"
#include "cuda/tools/mma.cuh"
#include "cuda/tools/shared_tile.cuh"
#include "low_rank.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kRows = static_cast<int>(kLowRankRows);
constexpr int kTileColumns = 128;
constexpr int kStripColumns = static_cast<int>(kLowRankColumns);
constexpr int kTiles = kStripColumns / kTileColumns;  ///< tiles of a piece, and of shared memory
constexpr int kThreads = 256;
constexpr int kSteps = 8;  ///< steps of 16 rows or columns in a tile

struct Part {
  const void* b;
  float* db;
  int first;   ///< column of dy
  int count;   ///< columns
  int strips;  ///< strips of this part
};

struct LowRankCall {
  LowRankShape shape;
  const void* dy;
  const void* u;
  void* du;
  Dim dy_stride;  ///< elements
  int rows;
  int ranks;  ///< columns of u
  int parts;
  float scale;
  bool accumulate;
  float* du_terms;  ///< (strips, rows, R)
  float* db_terms;  ///< (strips, most_sums, kStripColumns, R)
  Part part[kMostLowRankParts];

  [[nodiscard]] __device__ Dim first_piece(Dim block) const {
    return block * shape.pieces() / shape.blocks;
  }
  [[nodiscard]] __device__ int block_of(Dim piece) const {
    return static_cast<int>(((piece + 1) * shape.blocks - 1) / shape.pieces());
  }
  /// The block that begins a strip, and the one that ends it.
  [[nodiscard]] __device__ int first_block(int strip) const {
    return block_of(strip * shape.pieces_of_strip);
  }
  [[nodiscard]] __device__ int last_block(int strip) const {
    return block_of((strip + 1) * shape.pieces_of_strip - 1);
  }
};

/// A strip, and where it lies in its part.
struct Strip {
  int index;
  int part = 0;
  int first = 0;  ///< column of the part
  __device__ Strip(const LowRankCall& call, int strip) : index(strip) {
    int of_part = strip;
    while (of_part >= call.part[part].strips) of_part -= call.part[part++].strips;
    first = of_part * kStripColumns;
  }
};

/// Rows of R elements with 16 bytes after each, so that eight of them lie in different banks (for R
/// of 8: four).
template <int R>
struct RankRows {
  static constexpr int kPitch = 2 * R + 16;  ///< bytes
  std::uint32_t base;
  [[nodiscard]] __device__ std::uint32_t at(int row, int chunk) const {
    return base + static_cast<std::uint32_t>(row * kPitch + chunk * 16);
  }
  /// Rows [row, row + 16) as the second operand of products, two words for each 8 ranks.
  __device__ void load(int row, std::uint32_t (&to)[R / 8][2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (R == 8) {
      load_matrices_transposed(at(row + lane % 16, 0), to[0]);
    } else {
#pragma unroll
      for (int i = 0; i < R / 8; i += 2) {
        std::uint32_t words[4];
        load_matrices_transposed(at(row + lane % 16, i + lane / 16), words);
        to[i][0] = words[0];
        to[i][1] = words[1];
        to[i + 1][0] = words[2];
        to[i + 1][1] = words[3];
      }
    }
  }
};

template <int R>
struct Memory {
  static constexpr int kTileBytes = SharedTile<kTileColumns, kRows>::kBytes;
  static constexpr int kRankBytes = kRows * RankRows<R>::kPitch;
  static constexpr int kFactorBytes = kStripColumns * RankRows<R>::kPitch;
  static constexpr int kBytes = kTiles * kTileBytes + 2 * kRankBytes + kFactorBytes;
};

/// A lane's part of a 16 x R block of sums: of rows g and g + 8 columns 2 t and 2 t + 1 of each 8.
template <int R>
using Sums = float[R / 8][4];

/// The room of sums of a 16 x R block, rows of R floats; rows from `count` on are left out.
template <int R>
__device__ void store_sums(const Sums<R>& sums, int first_row, int count, float* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    if (row >= count) continue;
#pragma unroll
    for (int i = 0; i < R / 8; ++i) {
      *reinterpret_cast<float2*>(to + static_cast<Dim>(row) * R + 8 * i + lane % 4 * 2) = {
          sums[i][2 * half], sums[i][2 * half + 1]};
    }
  }
}

/// A block's run of pieces. Of a piece of 128 x 512 four tiles of 128 x 128 follow each other; a
/// warp has 16 rows of each for du, whose sum ends with the piece, and 16 columns of each for dB,
/// whose sum ends with the strip or the run.
template <int R, class T>
class Run {
 public:
  using Tile = SharedTile<kTileColumns, kRows>;

  __device__ Run(const LowRankCall& call, unsigned char* memory)
      : call_(call),
        memory_(memory),
        factor_{rank_memory(memory, 2)},
        first_(call.first_piece(blockIdx.x)),
        end_(call.first_piece(blockIdx.x + 1)) {}

  __device__ void go() {
#pragma unroll
    for (int tile = 0; tile + 1 < kTiles; ++tile) load(first_, tile);
    Sums<R> db[kTiles] = {};
    for (Dim piece = first_; piece < end_; ++piece) {
      const Strip strip(call_, static_cast<int>(piece / call_.shape.pieces_of_strip));
      const int row = static_cast<int>(piece % call_.shape.pieces_of_strip) * kRows;
      if (piece == first_ || row == 0) load_factor(strip);
      Sums<R> du = {};
      const RankRows<R> u = ranks_of(piece);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        wait_for_loads<kTiles - 2>();
        __syncthreads();
        load(tile == 0 ? piece : piece + 1, (tile + kTiles - 1) % kTiles);
        add_du(tile_at(tile), tile * kTileColumns, du);
        add_db(tile_at(tile), u, db[tile]);
      }
      store_sums<R>(du, warp() * 16, call_.rows - row,
                    call_.du_terms + (static_cast<Dim>(strip.index) * call_.rows + row) * R);
      if (piece + 1 == end_ || row + kRows >= call_.rows) store_db(strip, db);
    }
    wait_for_loads<0>();
  }

 private:
  [[nodiscard]] __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  [[nodiscard]] __device__ static std::uint32_t rank_memory(unsigned char* memory, int index) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(
        memory + kTiles * Memory<R>::kTileBytes + index * Memory<R>::kRankBytes));
  }
  [[nodiscard]] __device__ Tile tile_at(int tile) const {
    return Tile(memory_ + tile * Memory<R>::kTileBytes);
  }
  [[nodiscard]] __device__ RankRows<R> ranks_of(Dim piece) const {
    return {rank_memory(memory_, static_cast<int>(piece % 2))};
  }

  /// Starts to load a tile of a piece, and with the first one the piece's rows of u. A group of
  /// loads, also when nothing is left to load.
  __device__ void load(Dim piece, int tile) const {
    if (piece < end_) {
      const Strip strip(call_, static_cast<int>(piece / call_.shape.pieces_of_strip));
      const int row = static_cast<int>(piece % call_.shape.pieces_of_strip) * kRows;
      load_tile(strip, row, tile);
      if (tile == 0) load_ranks(strip, row, ranks_of(piece));
    }
    commit_loads();
  }
  __device__ void load_tile(const Strip& strip, int first_row, int tile) const {
    constexpr int kChunks = kTileColumns / 8;
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const Part& part = call_.part[strip.part];
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    const int column = strip.first + tile * kTileColumns + chunk * 8;
    const bool has_column = column < part.count;
    const auto* dy = static_cast<const T*>(call_.dy);
    const Tile to = tile_at(tile);
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kChunks;
      const bool there = has_column && first_row + row < call_.rows;
      const T* from = dy + (first_row + row) * call_.dy_stride + part.first + column;
      load_chunk(to.at(row, chunk), there ? from : dy, there);
    }
  }
  __device__ void load_ranks(const Strip& strip, int first_row, const RankRows<R>& to) const {
    constexpr int kChunks = R / 8;
    const auto* u = static_cast<const T*>(call_.u);
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks;
      const bool there = first_row + row < call_.rows;
      const T* from =
          u + static_cast<Dim>(first_row + row) * call_.ranks + strip.part * R + i % kChunks * 8;
      load_chunk(to.at(row, i % kChunks), there ? from : u, there);
    }
  }
  /// The rows of B that belong to the strip's columns; rows beyond are zero.
  __device__ void load_factor(const Strip& strip) const {
    constexpr int kChunks = R / 8;
    const Part& part = call_.part[strip.part];
    const auto* b = static_cast<const T*>(part.b);
    __syncthreads();  // no one reads the strip before this one
    for (int i = static_cast<int>(threadIdx.x); i < kStripColumns * kChunks; i += kThreads) {
      const int column = strip.first + i / kChunks;
      uint4 words = {};
      if (column < part.count) {
        words = *reinterpret_cast<const uint4*>(b + static_cast<Dim>(column) * R + i % kChunks * 8);
      }
      asm volatile(
          "st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(factor_.at(i / kChunks, i % kChunks)),
          "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
          : "memory");
    }
  }

  /// du += tile (rows of the warp x 128) B (128 x R).
  __device__ void add_du(const Tile& tile, int first_column, Sums<R>& du) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t rows[4];
      load_matrices(tile.at(warp() * 16 + lane % 16, 2 * step + lane / 16), rows);
      multiply(rows, factor_, first_column + 16 * step, du);
    }
  }
  /// db += the transpose of tile's columns of the warp (16 x 128) u (128 x R).
  __device__ void add_db(const Tile& tile, const RankRows<R>& u, Sums<R>& db) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t columns[4];
      load_matrices_transposed(
          tile.at(16 * step + lane / 16 * 8 + lane % 8, 2 * warp() + lane / 8 % 2), columns);
      multiply(columns, u, 16 * step, db);
    }
  }
  __device__ static void multiply(const std::uint32_t (&left)[4], const RankRows<R>& right,
                                  int first_row, Sums<R>& sums) {
    std::uint32_t words[R / 8][2];
    right.load(first_row, words);
#pragma unroll
    for (int i = 0; i < R / 8; ++i) multiply_add<T>(sums[i], left, words[i][0], words[i][1]);
  }

  /// Leaves the block's sums of a strip and clears them.
  __device__ void store_db(const Strip& strip, Sums<R> (&db)[kTiles]) const {
    const Dim sum = static_cast<int>(blockIdx.x) - call_.first_block(strip.index);
    float* to =
        call_.db_terms + (strip.index * call_.shape.most_sums + sum) * (Dim{kStripColumns} * R);
    const int columns = call_.part[strip.part].count - strip.first;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      store_sums<R>(db[tile], tile * kTileColumns + warp() * 16, columns, to);
#pragma unroll
      for (auto& block : db[tile]) {
        for (float& value : block) value = 0;
      }
    }
  }

  const LowRankCall& call_;
  unsigned char* memory_;
  RankRows<R> factor_;
  Dim first_;
  Dim end_;
};

template <int R, class T>
__global__ void __launch_bounds__(kThreads, 1)
    low_rank_kernel(const __grid_constant__ LowRankCall call) {
  extern __shared__ __align__(128) unsigned char memory[];
  Run<R, T>(call, memory).go();
}

__device__ float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
/// The sum of `count` times four floats, `stride` floats apart, in order.
__device__ float4 sum_terms(const float* from, Dim stride, int count) {
  float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
  for (int i = 1; i < count; ++i) {
    sum = add(sum, *reinterpret_cast<const float4*>(from + i * stride));
  }
  return sum;
}

/// A thread sums four neighbors of du, or of dB after all of du.
template <int R, class T>
__global__ void __launch_bounds__(kThreads)
    low_rank_sums_kernel(const __grid_constant__ LowRankCall call) {
  constexpr int kFours = R / 4;  // vectors of four in a row
  const Dim strip_floats = static_cast<Dim>(call.rows) * R;
  Dim four = static_cast<Dim>(blockIdx.x) * kThreads + threadIdx.x;
  const Dim du_fours = static_cast<Dim>(call.rows) * call.parts * kFours;
  if (four < du_fours) {
    const int rank = static_cast<int>(four % kFours) * 4;
    const int part = static_cast<int>(four / kFours % call.parts);
    const Dim row = four / kFours / call.parts;
    int strip = 0;
    for (int i = 0; i < part; ++i) strip += call.part[i].strips;
    const float4 sum = sum_terms(call.du_terms + strip * strip_floats + row * R + rank,
                                 strip_floats, call.part[part].strips);
    const float scaled[4] = {call.scale * sum.x, call.scale * sum.y, call.scale * sum.z,
                             call.scale * sum.w};
    store<4>(static_cast<T*>(call.du) + row * call.ranks + part * R + rank, scaled);
    return;
  }
  four -= du_fours;
  const int strip_index = static_cast<int>(four / (Dim{kStripColumns} * kFours));
  if (strip_index >= call.shape.strips) return;
  const Strip strip(call, strip_index);
  const Dim inside = four % (Dim{kStripColumns} * kFours);
  const Part& part = call.part[strip.part];
  if (strip.first + inside / kFours >= part.count) return;
  const Dim sum_floats = Dim{kStripColumns} * R;
  float4 sum =
      sum_terms(call.db_terms + strip.index * call.shape.most_sums * sum_floats + inside * 4,
                sum_floats, call.last_block(strip.index) - call.first_block(strip.index) + 1);
  auto* to = reinterpret_cast<float4*>(part.db + static_cast<Dim>(strip.first) * R + inside * 4);
  if (call.accumulate) sum = add(*to, sum);
  *to = sum;
}

template <int R, class T>
void launch(Context& ctx, const LowRankCall& call) {
  constexpr const char* kName = "low_rank_backward";
  const auto kernel = low_rank_kernel<R, T>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Memory<R>::kBytes),
      kName, "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(call.shape.blocks), kThreads, Memory<R>::kBytes,
           ctx.stream().cuda()>>>(call);
  check_launch(kName);
  const Dim fours =
      (static_cast<Dim>(call.rows) * call.parts + call.shape.strips * kStripColumns) * (R / 4);
  low_rank_sums_kernel<R, T>
      <<<static_cast<unsigned>(ceil_divide(fours, kThreads)), kThreads, 0, ctx.stream().cuda()>>>(
          call);
  check_launch(kName);
}

int shared_bytes(Dim rank) {
  return rank == 8 ? Memory<8>::kBytes : rank == 16 ? Memory<16>::kBytes : Memory<32>::kBytes;
}

}  // namespace

bool has_room_for_low_rank(Dim rank) { return shared_bytes(rank) <= most_shared_bytes(); }

void low_rank_backward(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                       float scale, Accumulate accumulate, View du) {
  const Dim rank = parts.front().b.shape()[1];
  LowRankCall call;
  call.shape = low_rank_shape(dy, parts);
  call.dy = dy.raw();
  call.u = u.raw();
  call.du = du.raw();
  call.dy_stride = dy.shape().back();
  call.rows = static_cast<int>(dy.rows());
  call.ranks = static_cast<int>(u.shape().back());
  call.parts = static_cast<int>(parts.size());
  call.scale = scale;
  call.accumulate = accumulate == Accumulate::yes;
  call.du_terms = static_cast<float*>(
      ctx.workspace("low_rank_backward", low_rank_workspace(call.shape, dy.rows(), rank)));
  call.db_terms = call.du_terms + low_rank_du_floats(call.shape, dy.rows(), rank);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const LowRankPart& part = parts[i];
    call.part[i] = {part.b.raw(), View(part.db).data<float>(), static_cast<int>(part.first),
                    static_cast<int>(part.count), static_cast<int>(low_rank_strips(part.count))};
  }
  const auto with_rank = [&]<class T>(T) {
    switch (rank) {
      case 8: return launch<8, T>(ctx, call);
      case 16: return launch<16, T>(ctx, call);
      default: return launch<32, T>(ctx, call);
    }
  };
  if (dy.dtype() == DType::bf16) {
    with_rank(bf16());
  } else {
    with_rank(f16());
  }
}

}  // namespace hyperslab::ops::cuda
