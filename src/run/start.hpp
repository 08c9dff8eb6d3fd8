// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of a run: the ranks, the deck and the command line of one start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "hyperslab/core/recorder.hpp"
#include "hyperslab/run/run.hpp"
#include "stop_request.hpp"

namespace hyperslab::run {

struct Start {
  Start(comm::World& ranks, train::Config deck, RunOptions command_line);

  comm::World& world;
  train::Config config;
  RunOptions options;
  std::string checkpoints;  ///< the directory of the run's checkpoints
  std::unique_ptr<StopRequest> stop;

  [[nodiscard]] bool is_first() const { return world.rank() == 0; }
  [[nodiscard]] const io::ResumeChoice& resume() const {
    return options.resume ? *options.resume : config.checkpoint.resume;
  }
  /// True if this process was asked to stop, or its time is over.
  [[nodiscard]] bool is_asked_to_stop() const { return stop->is_asked(now_seconds()); }
  /// The last step of this start, unless it is asked to stop. `last_step`: of the run.
  [[nodiscard]] std::int64_t final_step(std::int64_t last_step) const {
    const std::int64_t stop_after = options.stop_after;
    return stop_after > 0 && stop_after < last_step ? stop_after : last_step;
  }
};

}  // namespace hyperslab::run
