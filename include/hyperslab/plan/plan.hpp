// SPDX-License-Identifier: Apache-2.0
// What a rank will hold, compute and send: a step on `meta`.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/train/trainer.hpp"

namespace hyperslab::plan {

/// Memory and work of one rank, from its setup and one step on `meta`.
struct Plan {
  model::MemoryPlan memory;
  Ledger ledger;                                                ///< of one step
  std::vector<std::pair<std::string, Allocation>> allocations;  ///< with the arena's name
  std::vector<std::pair<std::string, Shape>> parameters;        ///< of this rank
  std::map<comm::GroupRole, comm::Traffic> traffic;             ///< of one step, by group
};
[[nodiscard]] Plan make_plan(const train::Config& config, const train::TrainerOptions& options,
                             int world_rank);

}  // namespace hyperslab::plan
