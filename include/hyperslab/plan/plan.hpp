// SPDX-License-Identifier: Apache-2.0
// Memory, work and traffic of one rank, from a step on `meta`.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/core/operation_list.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::plan {

/// Memory and work of one rank, from its setup and one step on `meta`.
struct Plan {
  model::MemoryPlan memory;
  /// The most of `memory` in use at one time of a step, as runs report it: without libraries'
  /// workspace, and slots that the schedule has no use for.
  std::int64_t peak_in_use = 0;
  Ledger ledger;            ///< work of one step, with samples of one document
  double hidden_flops = 0;  ///< FLOPs of `ledger` that leave_out_documents() took off
  std::vector<std::pair<std::string, Allocation>> allocations;  ///< with the arena's name
  std::vector<std::pair<std::string, Shape>> parameters;        ///< names and shapes on this rank
  std::map<comm::GroupRole, comm::Traffic> traffic;             ///< traffic of one step, by group
  /// Movements of parameters and gradients in a step, and the names of the units they are of.
  std::vector<sharding::NamedMovement> movements;
  std::vector<std::string> units;
  std::size_t checkpoint_bytes = 0;       ///< that this rank writes of a checkpoint
  std::vector<OperationList> operations;  ///< operations of each listed step, in order

  [[nodiscard]] double flops() const { return ledger.total().flops - hidden_flops; }  ///< in a step
};
/// `listed_steps`: how many steps' operations to list.
[[nodiscard]] Plan make_plan(const train::Config& config, const train::TrainerOptions& options,
                             int world_rank, int listed_steps = 0);

}  // namespace hyperslab::plan
