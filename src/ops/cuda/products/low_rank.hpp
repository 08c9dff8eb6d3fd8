// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/tools/workspace.hpp"
#include "hyperslab/ops/low_rank.hpp"

// The split of low_rank_backward, for the kernel and for the plan; it needs no CUDA.

namespace hyperslab::ops::cuda {

inline constexpr Dim kLowRankRows = 128;     ///< rows of a piece of dy
inline constexpr Dim kLowRankColumns = 512;  ///< columns of a strip, which has all rows of dy
inline constexpr std::size_t kMostLowRankParts = 4;

/// Strips of kLowRankColumns columns are cut into pieces of kLowRankRows rows. Blocks take equal
/// runs of pieces, strip after strip: a block leaves the sum of dB of every strip that it touches,
/// and a strip's du is one term for each of its rows. Nothing depends on the device.
struct LowRankShape {
  Dim strips = 0;
  Dim pieces_of_strip = 0;
  Dim blocks = 0;
  Dim most_sums = 0;  ///< blocks that touch one strip, at most

  [[nodiscard]] constexpr Dim pieces() const { return strips * pieces_of_strip; }
};
[[nodiscard]] constexpr Dim low_rank_strips(Dim columns) {
  return ceil_divide(columns, kLowRankColumns);
}
[[nodiscard]] constexpr LowRankShape low_rank_shape(Dim strips, Dim rows) {
  LowRankShape shape;
  shape.strips = strips;
  shape.pieces_of_strip = ceil_divide(rows, kLowRankRows);
  shape.blocks = std::min<Dim>(kReferenceMultiprocessors, shape.pieces());
  shape.most_sums = std::min(
      shape.blocks, shape.pieces_of_strip / std::max<Dim>(1, shape.pieces() / shape.blocks) + 2);
  return shape;
}
/// Floats that the terms of du take; dB's follow.
[[nodiscard]] constexpr Dim low_rank_du_floats(const LowRankShape& shape, Dim rows, Dim rank) {
  return shape.strips * rows * rank;
}
[[nodiscard]] constexpr std::size_t low_rank_workspace(const LowRankShape& shape, Dim rows,
                                                       Dim rank) {
  const Dim db_floats = shape.strips * shape.most_sums * kLowRankColumns * rank;
  return static_cast<std::size_t>(low_rank_du_floats(shape, rows, rank) + db_floats) *
         sizeof(float);
}

/// True if one reading of dy does. Addresses count on a device only; on `meta` they are null.
[[nodiscard]] bool suits_low_rank(CView dy, const std::vector<LowRankPart>& parts, CView u,
                                  CView du);
/// The shape of a call that suits.
[[nodiscard]] LowRankShape low_rank_shape(CView dy, const std::vector<LowRankPart>& parts);

/// True if a block of the GPU in use has the shared memory that the kernel takes for this rank; on
/// one that has not, the products stay two.
[[nodiscard]] bool has_room_for_low_rank(Dim rank);
void low_rank_backward(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                       float scale, Accumulate accumulate, View du);

}  // namespace hyperslab::ops::cuda
