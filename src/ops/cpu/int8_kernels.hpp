// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "hyperslab/core/view.hpp"

// Exact products of int8 rows. All instruction sets give the same sums.

namespace hyperslab::ops::cpu {

enum class InstructionSet : std::uint8_t { portable, avx2, avx512_vnni, amx };
inline constexpr std::array kInstructionSets = {InstructionSet::portable, InstructionSet::avx2,
                                                InstructionSet::avx512_vnni, InstructionSet::amx};

/// True if this processor and its operating system have it.
[[nodiscard]] bool has(InstructionSet set);
/// The fastest that this machine has.
[[nodiscard]] InstructionSet best_instruction_set();

/// Columns that kernels read at once; activations are zero after the last column up to here.
inline constexpr Dim kColumnStep = 64;
/// Weight rows of a panel, in which four columns of each lie side by side: (columns / 4, 16, 4).
inline constexpr Dim kPanelRows = 16;
/// Panels that a kernel multiplies with at once.
inline constexpr Dim kPanels = 4;
/// There is memory for a multiple of so many activation rows.
inline constexpr Dim kTileRows = 32;
/// Activation rows whose sums are computed at once; a multiple of kTileRows.
inline constexpr Dim kRowBlock = 128;

/// Rounded activations: codes in [-127, 127], `pitch` bytes from row to row, and the sum of the
/// codes of each row, which turns products with unsigned weights (code + 128) into those with the
/// codes.
struct Int8Rows {
  const std::int8_t* codes;
  Dim pitch;
  Dim columns;  ///< a multiple of kColumnStep
  const std::int32_t* sums;
};

/// Weight rows as they are stored: codes (rows, K).
struct Int8Weights {
  const std::uint8_t* codes;
  Dim K;
};

/// Functions of one instruction set: they compute sums[row * pitch + weight row].
struct Int8Kernels {
  int rows;  ///< activation rows that `dots` takes at most; weight rows: 4 or 1
  void (*dots)(int rows, int weight_rows, const Int8Rows& x, const Int8Weights& weights,
               std::int32_t* sums, Dim pitch);
  /// With this many rows or more weights are packed first; 0: never.
  Dim packed_rows;
  /// Packs up to kPanels * kPanelRows weight rows; rows that are missing hold anything.
  void (*pack)(const Int8Weights& weights, Dim weight_rows, std::uint8_t* panels);
  /// Sums of up to kRowBlock rows with packed panels.
  void (*panel_sums)(Dim rows, Dim panels, const Int8Rows& x, const std::uint8_t* packed,
                     std::int32_t* sums, Dim pitch);
};

[[nodiscard]] const Int8Kernels& int8_kernels(InstructionSet set);

// int8_avx512.cpp defines these where the processor is an x86.
extern const Int8Kernels kVnniKernels;
extern const Int8Kernels kAmxKernels;

}  // namespace hyperslab::ops::cpu
