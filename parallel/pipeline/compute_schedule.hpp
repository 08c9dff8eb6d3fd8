// SPDX-License-Identifier: Apache-2.0
// The passes of every rank in order, without transfers and slots.
#pragma once

#include <vector>

#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::pipeline {

struct PipelineShape {
  Schedule schedule = Schedule::gpipe;
  int stages = 1;
  int virtual_stages = 1;
  int microbatches = 1;
};

struct ComputePass {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int microbatch = 0;
};

/// Units of time that a pass takes in the schedule's own clock.
[[nodiscard]] int unit_cost(ActionKind kind);

/// The passes of a rank in order. The shape must be legal.
[[nodiscard]] std::vector<std::vector<ComputePass>> compute_schedules(const PipelineShape& shape);

}  // namespace hyperslab::pipeline
