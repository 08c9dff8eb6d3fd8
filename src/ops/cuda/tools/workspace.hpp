// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "hyperslab/core/machine.hpp"
#include "hyperslab/core/view.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/experts.hpp"

// Launch shapes that decide how much scratch memory an op needs. They depend on sizes alone, never
// on the device, so that a plan on `meta` is exact and results have the same bits everywhere; and
// they need no CUDA, so that any build can plan for GPUs.

namespace hyperslab::ops::cuda {

[[nodiscard]] constexpr Dim ceil_divide(Dim value, Dim unit) { return (value + unit - 1) / unit; }

/// Blocks of a reduction over everything: eight on each multiprocessor.
inline constexpr Dim kMostBlocks = Dim{8} * kReferenceMultiprocessors;

/// The widest row of norm_backward and add_norm_forward.
inline constexpr Dim kMaxNormWidth = 16384;

/// norm_backward's split of rows of width C: `threads` per row with at most `held` columns each,
/// `groups` rows at once in a block. Few columns leave registers for more rows on their way.
struct NormBackwardShape {
  int held;  ///< 8 or 16
  int threads;
  int groups;
  int blocks;  ///< each leaves one partial sum of dweight and dbias, and of the stream
};
/// `stream`: with sums of the stream, which take registers.
[[nodiscard]] constexpr NormBackwardShape norm_backward_shape(Dim rows, Dim C, bool stream) {
  const Dim held = C <= 2048 ? 8 : 16;
  const Dim threads = std::max<Dim>(1, ceil_divide(ceil_divide(C, held), 32)) * 32;
  const Dim groups = std::max<Dim>(1, 256 / threads);
  const Dim at_once = held == 8 ? (stream ? 3 : 4) : threads <= 256 && !stream ? 2 : 1;
  const Dim most = Dim{kReferenceMultiprocessors} * at_once;
  const Dim blocks = std::max<Dim>(1, std::min(most, ceil_divide(rows, groups)));
  return {static_cast<int>(held), static_cast<int>(threads), static_cast<int>(groups),
          static_cast<int>(blocks)};
}
[[nodiscard]] constexpr std::size_t norm_backward_partials(Dim rows, Dim C, bool stream) {
  return static_cast<std::size_t>(Dim{norm_backward_shape(rows, C, stream).blocks} *
                                  (stream ? 4 : 2) * C) *
         sizeof(float);
}

/// Blocks of head_norm_forward and of head_norm_backward, each of which leaves one partial sum of
/// either gradient.
[[nodiscard]] constexpr int head_norm_blocks(const HeadLayout& layout, Dim rows) {
  const Dim heads = rows * std::max(layout.heads, layout.kv_heads);
  return static_cast<int>(
      std::max<Dim>(1, std::min(Dim{4} * kReferenceMultiprocessors, ceil_divide(heads, 8))));
}
[[nodiscard]] constexpr std::size_t head_norm_partials(const HeadLayout& layout, Dim rows) {
  return static_cast<std::size_t>(Dim{head_norm_blocks(layout, rows)} * 2 * layout.head_width) *
         sizeof(float);
}

/// Rows of a tile of attention_warpgroup_backward, which leaves the column sums of each.
inline constexpr Dim kAttentionTileRows = 64;
[[nodiscard]] inline std::size_t attention_bias_partials(const HeadLayout& layout, Dim B, Dim T) {
  return static_cast<std::size_t>(B * ceil_divide(T, kAttentionTileRows) * layout.packed_width()) *
         sizeof(float);
}

/// Parts into which column_sums cuts the rows; each leaves one partial sum per column.
[[nodiscard]] constexpr int column_sums_parts(Dim rows, Dim C) {
  const Dim most = std::max<Dim>(1, kMostBlocks / std::max<Dim>(1, ceil_divide(C, 256)));
  return static_cast<int>(std::max<Dim>(1, std::min(most, ceil_divide(rows, 64))));
}
[[nodiscard]] constexpr std::size_t column_sums_partials(Dim rows, Dim C) {
  return static_cast<std::size_t>(column_sums_parts(rows, C) * C) * sizeof(float);
}

/// One block's sum of squares and count of elements that are not finite.
struct SquareSum {
  double squares;
  double non_finite;
};
[[nodiscard]] constexpr int sum_of_squares_blocks(Dim count) {
  return static_cast<int>(std::max<Dim>(1, std::min<Dim>(kMostBlocks, ceil_divide(count, 4096))));
}
[[nodiscard]] constexpr std::size_t sum_of_squares_workspace(Dim count) {
  return static_cast<std::size_t>(sum_of_squares_blocks(count)) * sizeof(SquareSum);
}

/// Blocks of normalize_matrices that share a matrix, each of which leaves a partial sum in double.
inline constexpr int kMatrixNormParts = 128;
[[nodiscard]] constexpr std::size_t normalize_matrices_workspace(Dim batch) {
  return static_cast<std::size_t>(batch * kMatrixNormParts) * sizeof(double);
}

/// Pairs of a part of sort_by_expert, which a warp counts and places.
inline constexpr int kSortPart = 512;
[[nodiscard]] constexpr Dim sort_parts(Dim pairs) { return ceil_divide(pairs, kSortPart); }
/// Each part's pairs of every expert, then all pairs of every expert.
[[nodiscard]] constexpr std::size_t sort_by_expert_workspace(Dim pairs, Dim experts) {
  return static_cast<std::size_t>((sort_parts(pairs) + 1) * experts) * sizeof(std::int32_t);
}

/// Tokens of a part of router_statistics, which leaves its sums.
inline constexpr int kRouterPart = 64;
[[nodiscard]] constexpr Dim router_parts(Dim sample_tokens) {
  return ceil_divide(sample_tokens, kRouterPart);
}
[[nodiscard]] constexpr std::size_t router_statistics_workspace(Dim samples, Dim sample_tokens,
                                                                Dim experts) {
  return static_cast<std::size_t>(samples * router_parts(sample_tokens) *
                                  router_statistics_width(experts)) *
         sizeof(float);
}

/// Parts of a row whose products weighted_activation_backward adds up, of a warp each with vectors
/// of so many elements, 16 bytes.
[[nodiscard]] constexpr Dim weighted_activation_parts(Dim width, Dim vector) {
  return ceil_divide(width, 32 * vector);
}
[[nodiscard]] constexpr std::size_t weighted_activation_workspace(Dim rows, Dim width, Dim vector) {
  const Dim parts = weighted_activation_parts(width, vector);
  return parts == 1 ? 0 : static_cast<std::size_t>(rows * parts) * sizeof(float);
}

/// The terms that one row of logits adds to the sums.
struct RowLoss {
  double loss;
  float z_loss;
  float tokens;
  float correct;
};
/// The terms besides, where the loss has values: see RowTerms.
struct RowTermSums {
  float weight;
  float kl;
  float clipped;
  float target_loss;
};
[[nodiscard]] constexpr std::size_t loss_workspace(Dim rows, bool has_terms) {
  return static_cast<std::size_t>(rows) * (sizeof(RowLoss) + (has_terms ? sizeof(RowTermSums) : 0));
}

/// The terms that one sample of pairs adds to the sums.
struct PairSums {
  double loss;
  float pairs;
  float tokens;
  float preferred;
};
[[nodiscard]] constexpr std::size_t preference_workspace(Dim samples) {
  return static_cast<std::size_t>(samples) * sizeof(PairSums);
}

/// The terms that one row of class logits adds to the sums.
struct ClassRowLoss {
  float loss;
  int counts;
  int correct;
  int correct5;
};
[[nodiscard]] constexpr std::size_t class_cross_entropy_workspace(Dim rows) {
  return static_cast<std::size_t>(rows) * sizeof(ClassRowLoss);
}

}  // namespace hyperslab::ops::cuda
