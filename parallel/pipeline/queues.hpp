// SPDX-License-Identifier: Apache-2.0
// A program run in virtual time, with one computation and one queue of exchanges per rank.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/pipeline/validate.hpp"

namespace hyperslab::pipeline {

struct QueueRun {
  std::vector<std::vector<Interval>> actions;  ///< [rank][action]
  std::string stuck;  ///< empty, or the actions at which ranks wait for each other
};

/// As Simulation says. The program's indices must be in range.
[[nodiscard]] QueueRun run_queues(const Program& program, const Costs& costs);

}  // namespace hyperslab::pipeline
