// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backend.hpp"
#include "cuda/tools/kernel_table.hpp"
#include "hyperslab/core/machine.hpp"

// The kernels of products of each expert's rows. They read on the GPU which rows these are.

namespace hyperslab::ops::cuda {

/// The parts of a call that decide who computes it.
struct ExpertsProblem {
  Dim experts;
  Dim rows;  ///< all experts', at most
  /// Terms of a sum; of gradients of weights, which sum over rows, the outputs.
  Dim depth;
  Dim columns;  ///< the product's
  DType dtype;
  bool is_aligned;  ///< all operands begin at multiples of 16 bytes
};

/// The problem of a product of rows (R, depth) with results of `columns` columns.
template <class... Views>
[[nodiscard]] ExpertsProblem experts_problem(CView first_rows, CView rows, Dim columns,
                                             const Views&... others) {
  const Dim depth = rows.shape().back();
  return {.experts = first_rows.numel() - 1,
          .rows = rows.numel() / std::max<Dim>(1, depth),
          .depth = depth,
          .columns = columns,
          .dtype = rows.dtype(),
          .is_aligned = begin_at_16_bytes(rows, others...)};
}

inline constexpr int kMostExperts = 1024;  // a block keeps their first rows
inline constexpr int kExpertTileRows = 128;
inline constexpr int kExpertColumns = 256;  // a wide tile has them
inline constexpr int kFewerExpertColumns = 128;

/// Tiles of 128 columns keep more multiprocessors at work where there are few tiles.
[[nodiscard]] inline Reason suits_expert_tiles(const ExpertsProblem& problem) {
  constexpr Dim kMostRows = Dim{1} << 30;
  if (size_of(problem.dtype) != 2) return "elements are not 16 bits wide";
  if (problem.depth % 8 != 0 || problem.columns % 8 != 0) {
    return "rows are not a multiple of 16 bytes";
  }
  if (!problem.is_aligned) return "operands do not begin at multiples of 16 bytes";
  if (problem.experts > kMostExperts) return "more than 1,024 experts";
  const bool sizes = problem.rows > 0 && problem.depth > 0 && problem.columns > 0;
  if (!sizes || problem.rows > kMostRows) return "no or too many rows";
  return {};
}

/// A tile of 128 x 256 loads fewer bytes for each product than one of 128 x 128.
[[nodiscard]] inline Reason suits_wide_expert_tiles(const ExpertsProblem& problem) {
  const Reason reason = suits_expert_tiles(problem);
  if (!reason.empty()) return reason;
  const auto ceil = [](Dim count, Dim size) { return (count + size - 1) / size; };
  const Dim tiles = ceil(problem.rows, kExpertTileRows) * ceil(problem.columns, kExpertColumns);
  if (problem.columns <= kFewerExpertColumns) return "128 columns are enough";
  return tiles < kReferenceMultiprocessors ? "too few tiles of 256 columns" : Reason();
}

/// Likewise of gradients of weights: every expert has tiles of (depth, columns).
[[nodiscard]] inline Reason suits_wide_weight_tiles(const ExpertsProblem& problem) {
  ExpertsProblem of_tiles = problem;
  of_tiles.rows = problem.experts * problem.depth;
  return problem.rows > 0 ? suits_wide_expert_tiles(of_tiles) : suits_expert_tiles(problem);
}

[[nodiscard]] inline Reason suits_all_experts(const ExpertsProblem& /*problem*/) { return {}; }

using ExpertsForward = decltype(ops::experts_forward);
using ExpertsBackwardInput = decltype(ops::experts_backward_input);
using ExpertsBackwardWeight = decltype(ops::experts_backward_weight);
ExpertsForward wide_experts_forward, narrow_experts_forward, plain_experts_forward;
ExpertsBackwardInput wide_experts_backward_input, narrow_experts_backward_input,
    plain_experts_backward_input;
ExpertsBackwardWeight wide_experts_backward_weight, narrow_experts_backward_weight,
    plain_experts_backward_weight;

using ExpertsForwardKernel = Kernel<ExpertsProblem, ExpertsForward>;
inline constexpr std::array kExpertsForward = {
    ExpertsForwardKernel{"warpgroups, 256 columns", Needs::warpgroups, suits_wide_expert_tiles,
                         launch_of<wide_experts_forward>(), "experts/warpgroup_rows.cu",
                         "expert_rows_kernel"},
    ExpertsForwardKernel{"warpgroups, 128 columns", Needs::warpgroups, suits_expert_tiles,
                         launch_of<narrow_experts_forward>(), "experts/warpgroup_rows.cu",
                         "expert_rows_kernel"},
    ExpertsForwardKernel{"plain tiles", Needs::any_gpu, suits_all_experts,
                         launch_of<plain_experts_forward>(), "experts/plain_products.cu",
                         "plain_expert_rows_kernel"}};

using ExpertsInputKernel = Kernel<ExpertsProblem, ExpertsBackwardInput>;
inline constexpr std::array kExpertsBackwardInput = {
    ExpertsInputKernel{"warpgroups, 256 columns", Needs::warpgroups, suits_wide_expert_tiles,
                       launch_of<wide_experts_backward_input>(), "experts/warpgroup_rows.cu",
                       "expert_rows_kernel"},
    ExpertsInputKernel{"warpgroups, 128 columns", Needs::warpgroups, suits_expert_tiles,
                       launch_of<narrow_experts_backward_input>(), "experts/warpgroup_rows.cu",
                       "expert_rows_kernel"},
    ExpertsInputKernel{"plain tiles", Needs::any_gpu, suits_all_experts,
                       launch_of<plain_experts_backward_input>(), "experts/plain_products.cu",
                       "plain_expert_rows_kernel"}};

using ExpertsWeightKernel = Kernel<ExpertsProblem, ExpertsBackwardWeight>;
inline constexpr std::array kExpertsBackwardWeight = {
    ExpertsWeightKernel{"warpgroups, 256 columns", Needs::warpgroups, suits_wide_weight_tiles,
                        launch_of<wide_experts_backward_weight>(), "experts/warpgroup_weights.cu",
                        "expert_weights_kernel"},
    ExpertsWeightKernel{"warpgroups, 128 columns", Needs::warpgroups, suits_expert_tiles,
                        launch_of<narrow_experts_backward_weight>(), "experts/warpgroup_weights.cu",
                        "expert_weights_kernel"},
    ExpertsWeightKernel{"plain tiles", Needs::any_gpu, suits_all_experts,
                        launch_of<plain_experts_backward_weight>(), "experts/plain_products.cu",
                        "plain_expert_weights_kernel"}};

}  // namespace hyperslab::ops::cuda
