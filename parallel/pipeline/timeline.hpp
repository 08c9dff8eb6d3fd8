// SPDX-License-Identifier: Apache-2.0
// When passes end and transfers start in the schedule's own clock.
#pragma once

#include <vector>

#include "compute_schedule.hpp"

namespace hyperslab::pipeline {

/// A message between neighbouring global stages.
struct Message {
  int instant = 0;
  Payload payload = Payload::activation;
  int from = 0;  ///< global stage
  int to = 0;
  int microbatch = 0;
};

struct Timeline {
  std::vector<std::vector<int>> ends;  ///< [rank][pass]
  std::vector<Message> messages;       ///< by instant, payload, sender, microbatch
};

/// The most microbatches between forward and last backward part, [rank][chunk]; forward_only:
/// min(m, 2).
[[nodiscard]] std::vector<std::vector<int>> slots_of(
    const PipelineShape& shape, const std::vector<std::vector<ComputePass>>& schedules);

/// Runs the schedules as early as their data and slots allow. Throws an internal Error if they
/// block each other.
[[nodiscard]] Timeline make_timeline(const PipelineShape& shape,
                                     const std::vector<std::vector<ComputePass>>& schedules,
                                     const std::vector<std::vector<int>>& slots);

}  // namespace hyperslab::pipeline
