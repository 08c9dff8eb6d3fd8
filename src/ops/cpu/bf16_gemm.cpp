// SPDX-License-Identifier: Apache-2.0
#include "bf16_gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <array>

#include "bf16_kernels.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kBlockK = 512;              // a panel of the right operand: 32 KiB
constexpr Dim kBlockColumns = 1024;       // packed once for all threads: 1 MiB
constexpr Dim kUnitRows = 4 * kTileRows;  // rows of the left operand that one thread packs: 56 KiB
constexpr Dim kSumRows = 2048;            // sums that wait for the next block along K: 8 MiB
constexpr Dim kUnitsOfThread = 8;         // so many or more, so that no thread waits for long

/// Memory of the calling thread; it grows to the largest asked for.
std::byte* memory(std::size_t bytes) {
  thread_local Buffer buffer;
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // the old memory goes first
    buffer = Buffer(Device::cpu, bytes);
  }
  return static_cast<std::byte*>(buffer.data());
}

struct Problem {
  int threads;
  GemmSize n;
  float alpha;
  Bf16Rows left;
  Bf16Rows right;
  Bf16Result c;
  /// Sums do not go to c itself, and are not complete after one block along K.
  [[nodiscard]] bool keeps_sums() const { return c.dtype == DType::bf16 && n.K > kBlockK; }
};

/// The memory of packed operands and sums. A thread's left operand is `left_stride` after the one
/// of the thread before.
struct Memory {
  Bf16Pair* right;
  Bf16Pair* left;
  Dim left_stride;
  float* sums;  // (rows of a block, kBlockColumns); null if none are kept

  explicit Memory(const Problem& p) {
    const Dim pairs = pairs_of(std::min(p.n.K, kBlockK));
    const Dim columns = round_up(std::min(p.n.N, kBlockColumns), kTileColumns);
    left_stride = round_up(pairs * kUnitRows + kPackSlack, 16);
    const Dim lefts = left_stride * p.threads;
    const Dim kept = p.keeps_sums() ? round_up(std::min(p.n.M, kSumRows), kTileRows) : 0;
    const Dim words = columns * pairs + lefts + kept * kBlockColumns;
    right = reinterpret_cast<Bf16Pair*>(memory(static_cast<std::size_t>(words) * sizeof(Bf16Pair)));
    left = right + columns * pairs;
    sums = kept > 0 ? reinterpret_cast<float*>(left + lefts) : nullptr;
  }
};

/// Rows [row, row_end), columns [column, column_end) and [k, k_end) of the sums.
struct Block {
  Dim row, row_end, column, column_end, k, k_end;
  [[nodiscard]] Dim rows() const { return row_end - row; }
  [[nodiscard]] Dim columns() const { return column_end - column; }
  [[nodiscard]] Dim ks() const { return k_end - k; }
  [[nodiscard]] Dim panel() const { return pairs_of(ks()) * kTileColumns; }
};

Bf16Result result_at(const Bf16Result& c, Dim row, Dim column) {
  Bf16Result here = c;
  const Dim bytes = (row * c.row + column) * static_cast<Dim>(size_of(c.dtype));
  here.data = static_cast<std::byte*>(c.data) + bytes;
  if (c.bias != nullptr) here.bias = c.bias + column;
  return here;
}

/// One tile of the block, `row` and `column` of the result; `sums` is its slot among those kept.
void multiply_tile(const Problem& p, const Block& b, Dim row, Dim column, const Bf16Pair* left,
                   const Bf16Pair* right, float* sums) {
  const Dim rows = std::min(kTileRows, b.row_end - row);
  const Dim columns = std::min(kTileColumns, b.column_end - column);
  const Dim pairs = pairs_of(b.ks());
  const bool is_first = b.k == 0;
  Bf16Result c = result_at(p.c, row, column);
  if (sums != nullptr) {
    bf16_tile(rows, pairs, left, right, {sums, kBlockColumns, is_first ? 0.0F : 1.0F});
    if (b.k_end == p.n.K) finish_tile(rows, columns, p.alpha, {sums, kBlockColumns, 0}, c);
    return;
  }
  c.accumulates = c.accumulates || !is_first;
  if (!is_first) c.bias = nullptr;
  if (c.dtype == DType::f32 && columns == kTileColumns && p.alpha == 1 && c.bias == nullptr) {
    const float beta = c.accumulates ? 1.0F : 0.0F;
    return bf16_tile(rows, pairs, left, right, {static_cast<float*>(c.data), c.row, beta});
  }
  std::array<float, kTileRows * kTileColumns> tile;
  bf16_tile(rows, pairs, left, right, {tile.data(), kTileColumns, 0});
  finish_tile(rows, columns, p.alpha, {tile.data(), kTileColumns, 0}, c);
}

/// One thread's part of a block: up to kUnitRows rows and some panels of the right operand.
void multiply_unit(const Problem& p, const Block& whole, const Block& part, const Memory& m,
                   Bf16Pair* left) {
  const Dim left_panel = pairs_of(part.ks()) * kTileRows;
  for (Dim row = part.row; row < part.row_end; row += kTileRows) {
    pack_left(p.left.at(row, part.k), std::min(kTileRows, part.row_end - row), part.ks(),
              left + (row - part.row) / kTileRows * left_panel);
  }
  for (Dim column = part.column; column < part.column_end; column += kTileColumns) {
    const Dim right = (column - whole.column) / kTileColumns * part.panel();
    for (Dim row = part.row; row < part.row_end; row += kTileRows) {
      float* sums = m.sums == nullptr
                        ? nullptr
                        : m.sums + (row - whole.row) * kBlockColumns + column - whole.column;
      multiply_tile(p, part, row, column, left + (row - part.row) / kTileRows * left_panel,
                    m.right + right, sums);
    }
  }
}

/// Which thread computes a unit does not change its bits, so the next free one does.
void multiply_block(const Problem& p, const Block& b, const Memory& m) {
  const Dim panels = (b.columns() + kTileColumns - 1) / kTileColumns;
  parallel_chunks(p.threads, panels, kTileColumns * b.ks(), [&](int, Dim begin, Dim end) {
    for (Dim i = begin; i < end; ++i) {
      const Dim column = b.column + i * kTileColumns;
      pack_right(p.right.at(column, b.k), std::min(kTileColumns, b.column_end - column), b.ks(),
                 m.right + i * b.panel());
    }
  });
  const Dim row_units = (b.rows() + kUnitRows - 1) / kUnitRows;
  const Dim wanted = (kUnitsOfThread * p.threads + row_units - 1) / row_units;
  const Dim groups = p.threads == 1 ? 1 : std::min(panels, wanted);  // groups of panels
  const bool worth_it = work_of_products(b.rows() * b.columns() * b.ks()) > kSerialWork;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic) if (worth_it)
  for (Dim unit = 0; unit < row_units * groups; ++unit) {
    const Dim group = unit % groups;
    Block part = b;
    part.row = b.row + unit / groups * kUnitRows;
    part.row_end = std::min(b.row_end, part.row + kUnitRows);
    part.column = b.column + panels * group / groups * kTileColumns;
    part.column_end =
        std::min(b.column_end, b.column + panels * (group + 1) / groups * kTileColumns);
    multiply_unit(p, b, part, m, m.left + omp_get_thread_num() * m.left_stride);
  }
}

/// A product of nothing: the bias alone.
void multiply_nothing(const Problem& p) {
  const std::array<float, kTileColumns> zeros = {};
  for (Dim row = 0; row < p.n.M; ++row) {
    for (Dim column = 0; column < p.n.N; column += kTileColumns) {
      finish_tile(1, std::min(kTileColumns, p.n.N - column), 1, {zeros.data(), 0, 0},
                  result_at(p.c, row, column));
    }
  }
}

}  // namespace

void bf16_gemm(int threads, GemmSize n, float alpha, Operand<bf16> a, Operand<bf16> b,
               const Bf16Result& c) {
  require(has_bf16_products(), "bf16_gemm: this processor has no AVX512_BF16");
  if (n.M == 0 || n.N == 0) return;
  const Problem p = {threads,
                     n,
                     alpha,
                     {a.data, a.row, a.trans == Trans::yes},
                     {b.data, b.row, b.trans == Trans::no},
                     c};
  if (n.K == 0) return multiply_nothing(p);
  const Memory m(p);
  const Dim row_step = p.keeps_sums() ? kSumRows : n.M;
  for (Dim column = 0; column < n.N; column += kBlockColumns) {
    for (Dim row = 0; row < n.M; row += row_step) {
      for (Dim k = 0; k < n.K; k += kBlockK) {
        const Block block = {row,    std::min(n.M, row + row_step),
                             column, std::min(n.N, column + kBlockColumns),
                             k,      std::min(n.K, k + kBlockK)};
        multiply_block(p, block, m);
      }
    }
  }
}

}  // namespace hyperslab::ops::cpu
