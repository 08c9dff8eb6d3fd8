// SPDX-License-Identifier: Apache-2.0
// What the parts of a run share: the ranks, the deck and the command line of one start.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/run/run.hpp"

namespace hyperslab::run {

struct Start {
  Start(comm::World& ranks, train::Config deck, RunOptions command_line);

  comm::World& world;
  train::Config config;
  RunOptions options;
  std::string checkpoints;  ///< the directory of the run's checkpoints

  [[nodiscard]] bool is_first() const { return world.rank() == 0; }
  [[nodiscard]] const io::ResumeChoice& resume() const {
    return options.resume ? *options.resume : config.checkpoint.resume;
  }
  /// Whether this process was asked to stop.
  [[nodiscard]] bool is_asked_to_stop() const {
    return options.stop_signal != nullptr && *options.stop_signal != 0;
  }
  /// The last step of this start, unless it is asked to stop. `last_step`: of the run.
  [[nodiscard]] std::int64_t final_step(std::int64_t last_step) const {
    const std::int64_t stop_after = options.stop_after;
    return stop_after > 0 && stop_after < last_step ? stop_after : last_step;
  }
};

}  // namespace hyperslab::run
