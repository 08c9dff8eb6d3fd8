// SPDX-License-Identifier: Apache-2.0
// The time of a step that was not run: the operations of one pipeline's ranks, on a machine's
// prices.
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/mesh/parallel_config.hpp"
#include "hyperslab/plan/price.hpp"

namespace hyperslab::plan {

/// The seconds of one pipeline rank in a step. compute, exposed and the rest of `step` (the end,
/// where it waits for the others) add up to the step.
struct SimulatedRank {
  double step = 0;
  double compute = 0;                              ///< with the cost of communication beside it
  std::array<double, kPhases> compute_by_phase{};  ///< `compute` of each phase
  std::map<std::string, double> exposed;           ///< waiting, by group
  std::map<std::string, double> communication;     ///< in progress, by group
};

struct SimulatedStep {
  double seconds = 0;
  std::vector<SimulatedRank> ranks;  ///< by pipeline coordinate
};

/// Simulates two steps in a row and returns the second, so that work that one step leaves to the
/// next, such as gathered parameters, counts. `steps[p][s]`: pipeline rank p's operations in step
/// s. The ranks along the other axes do the same at the same time. A rank's compute stream does one
/// thing after the other, each group's collectives run in order on a stream of their own; a wait
/// holds the compute stream until the collective has ended; a message starts when both ends have
/// called. While a collective runs, computation beside it is slower by Prices::overlap_cost.
/// `slowdown`: of each pipeline rank, how many times as long its ops take; none: 1.
/// Throws an internal Error if ranks wait for each other for ever.
[[nodiscard]] SimulatedStep simulate(const std::vector<std::vector<OperationList>>& steps,
                                     const mesh::ParallelConfig& parallel, Prices& prices,
                                     std::span<const double> slowdown = {});

/// simulate at the clock that the power limit leaves: where a rank would be done sooner than in
/// Prices::sustained_seconds, its ops slow down until it is not. The limit acts on means over many
/// ops, so light ones and waits for other ranks pay for heavy ones.
[[nodiscard]] SimulatedStep simulate_sustained(const std::vector<std::vector<OperationList>>& steps,
                                               const mesh::ParallelConfig& parallel,
                                               Prices& prices);

/// The distribution of a group over nodes, if nodes hold `ranks_per_node` consecutive ranks each.
[[nodiscard]] GroupLayout layout_of(std::string_view group, const mesh::ParallelConfig& parallel,
                                    int ranks_per_node);

}  // namespace hyperslab::plan
