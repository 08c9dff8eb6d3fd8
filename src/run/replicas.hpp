// SPDX-License-Identifier: Apache-2.0
// Which rank is to blame: for parameters that must be equal and differ, and for numbers that are
// not finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::run {

/// A rank's host and the sums of what it holds.
struct ReplicaSum {
  train::TrainerState::ReplicaSums sums;
  std::string host;
};

/// Names the ranks that differ from most of those with the same place on the other axes, or all of
/// them if there is no majority. `all`: by world rank. Empty: none differs.
[[nodiscard]] std::string differing_replicas(const mesh::ParallelConfig& parallel,
                                             const std::vector<ReplicaSum>& all);

/// Collective. Throws Error(numerics), the same on all ranks, if ranks differ after `step`. `mine`:
/// this rank's TrainerState::replica_sums().
void compare_replicas(comm::World& world, const mesh::ParallelConfig& parallel,
                      const train::TrainerState::ReplicaSums& mine, std::int64_t step);

/// Collective. Names the ranks whose own numbers are not finite, and these numbers.
[[nodiscard]] std::string describe_bad_numbers(comm::World& world,
                                               const mesh::ParallelConfig& parallel,
                                               const train::Trainer::BadNumbers& mine);

}  // namespace hyperslab::run
