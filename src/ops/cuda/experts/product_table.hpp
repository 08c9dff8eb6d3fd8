// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "backend.hpp"
#include "cuda/tools/kernel_table.hpp"
#include "hyperslab/core/machine.hpp"

// The kernels of products of each expert's rows. They read on the GPU which rows these are.

namespace hyperslab::ops::cuda {

/// The operand whose rows a product gathers.
enum class Gathers : std::uint8_t { none, left, right, both };

/// The parts of a call that decide who computes it.
struct ExpertsProblem {
  Dim experts;
  Dim rows;  ///< all experts', at most
  /// Terms of a sum; of gradients of weights, which sum over rows, the outputs.
  Dim depth;
  Dim columns;  ///< the product's
  DType dtype;
  bool is_aligned;  ///< all operands begin at multiples of 16 bytes
  Gathers gathers = Gathers::none;
};

/// The problem of a product of rows (R, depth) with results of `columns` columns.
template <class... Views>
[[nodiscard]] ExpertsProblem experts_problem(CView first_rows, const GatheredRows& rows,
                                             Dim columns, const Views&... others) {
  const Dim depth = rows.values.shape().back();
  return {.experts = first_rows.numel() - 1,
          .rows = rows.matrix().numel() / std::max<Dim>(1, depth),
          .depth = depth,
          .columns = columns,
          .dtype = rows.values.dtype(),
          .is_aligned = begin_at_16_bytes(rows.values, others...),
          .gathers = rows.in_order() ? Gathers::none : Gathers::left};
}

/// The problem of gradients of weights.
[[nodiscard]] inline ExpertsProblem weights_problem(CView first_rows, const GatheredRows& dy,
                                                    const GatheredRows& x, View dweights) {
  ExpertsProblem problem =
      experts_problem(first_rows, dy, x.values.shape().back(), x.values, dweights);
  if (!x.in_order()) problem.gathers = dy.in_order() ? Gathers::right : Gathers::both;
  return problem;
}

inline constexpr int kMostExperts = 1024;  // a block keeps their first rows
inline constexpr int kExpertTileRows = 128;
inline constexpr int kExpertColumns = 256;  // a wide tile has them
inline constexpr int kFewerExpertColumns = 128;

/// Tiles may be loaded from rows in order or not.
[[nodiscard]] inline Reason suits_tiles_of_any_rows(const ExpertsProblem& problem) {
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

/// Tiles of 128 columns keep more multiprocessors at work where there are few tiles.
[[nodiscard]] inline Reason suits_expert_tiles(const ExpertsProblem& problem) {
  return problem.gathers == Gathers::none ? suits_tiles_of_any_rows(problem) : "rows are gathered";
}

/// A tile of 128 x 256 loads fewer bytes for each product than one of 128 x 128.
[[nodiscard]] inline Reason suits_wide_tiles_of_any_rows(const ExpertsProblem& problem) {
  const Reason reason = suits_tiles_of_any_rows(problem);
  if (!reason.empty()) return reason;
  const auto ceil = [](Dim count, Dim size) { return (count + size - 1) / size; };
  const Dim tiles = ceil(problem.rows, kExpertTileRows) * ceil(problem.columns, kExpertColumns);
  if (problem.columns <= kFewerExpertColumns) return "128 columns are enough";
  return tiles < kReferenceMultiprocessors ? "too few tiles of 256 columns" : Reason();
}

[[nodiscard]] inline Reason suits_wide_expert_tiles(const ExpertsProblem& problem) {
  return problem.gathers == Gathers::none ? suits_wide_tiles_of_any_rows(problem)
                                          : "rows are gathered";
}

/// Threads compute addresses of rows in place of the copy engine, which has none for each row.
[[nodiscard]] inline Reason suits_gathered_tiles(const ExpertsProblem& problem) {
  return problem.gathers == Gathers::left ? suits_wide_tiles_of_any_rows(problem)
                                          : "rows are in order";
}

/// Likewise of gradients of weights: every expert has tiles of (depth, columns).
[[nodiscard]] inline Reason suits_wide_weight_tiles_of(const ExpertsProblem& problem,
                                                       Gathers gathers) {
  if (problem.gathers != gathers) return "other rows are gathered";
  ExpertsProblem of_tiles = problem;
  of_tiles.rows = problem.experts * problem.depth;
  return problem.rows > 0 ? suits_wide_tiles_of_any_rows(of_tiles)
                          : suits_tiles_of_any_rows(problem);
}
template <Gathers gathers>
[[nodiscard]] Reason suits_wide_weight_tiles(const ExpertsProblem& problem) {
  return suits_wide_weight_tiles_of(problem, gathers);
}

[[nodiscard]] inline Reason suits_all_experts(const ExpertsProblem& problem) {
  return problem.gathers == Gathers::none ? Reason() : "rows are gathered";
}

using ExpertsForward = decltype(ops::experts_forward);
using ExpertsBackwardInput = decltype(ops::experts_backward_input);
using ExpertsBackwardWeight = decltype(ops::experts_backward_weight);
ExpertsForward gathered_experts_forward, wide_experts_forward, narrow_experts_forward,
    plain_experts_forward;
ExpertsBackwardInput gathered_experts_backward_input, wide_experts_backward_input,
    narrow_experts_backward_input, plain_experts_backward_input;
ExpertsBackwardWeight gathered_left_experts_backward_weight, gathered_right_experts_backward_weight,
    wide_experts_backward_weight, narrow_experts_backward_weight, plain_experts_backward_weight;

using ExpertsForwardKernel = Kernel<ExpertsProblem, ExpertsForward>;
inline constexpr std::array kExpertsForward = {
    ExpertsForwardKernel{"warpgroups, 256 columns, gathered rows", Needs::warpgroups,
                         suits_gathered_tiles, launch_of<gathered_experts_forward>(),
                         "experts/warpgroup_rows.cu", "expert_rows_kernel"},
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
    ExpertsInputKernel{"warpgroups, 256 columns, gathered rows", Needs::warpgroups,
                       suits_gathered_tiles, launch_of<gathered_experts_backward_input>(),
                       "experts/warpgroup_rows.cu", "expert_rows_kernel"},
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
    ExpertsWeightKernel{"warpgroups, 256 columns, gathered gradients", Needs::warpgroups,
                        suits_wide_weight_tiles<Gathers::left>,
                        launch_of<gathered_left_experts_backward_weight>(),
                        "experts/warpgroup_weights.cu", "expert_weights_kernel"},
    ExpertsWeightKernel{"warpgroups, 256 columns, gathered inputs", Needs::warpgroups,
                        suits_wide_weight_tiles<Gathers::right>,
                        launch_of<gathered_right_experts_backward_weight>(),
                        "experts/warpgroup_weights.cu", "expert_weights_kernel"},
    ExpertsWeightKernel{"warpgroups, 256 columns", Needs::warpgroups,
                        suits_wide_weight_tiles<Gathers::none>,
                        launch_of<wide_experts_backward_weight>(), "experts/warpgroup_weights.cu",
                        "expert_weights_kernel"},
    ExpertsWeightKernel{"warpgroups, 128 columns", Needs::warpgroups, suits_expert_tiles,
                        launch_of<narrow_experts_backward_weight>(), "experts/warpgroup_weights.cu",
                        "expert_weights_kernel"},
    ExpertsWeightKernel{"plain tiles", Needs::any_gpu, suits_all_experts,
                        launch_of<plain_experts_backward_weight>(), "experts/plain_products.cu",
                        "plain_expert_weights_kernel"}};

}  // namespace hyperslab::ops::cuda
