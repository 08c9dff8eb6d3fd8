// SPDX-License-Identifier: Apache-2.0
// The steps of one start, one after another.
#pragma once

#include <cstdint>

#include "checkpoint_policy.hpp"
#include "run_data.hpp"
#include "run_records.hpp"
#include "start.hpp"

namespace hyperslab::run {

class StepLoop {
 public:
  struct Parts {
    const Start& start;
    const RunData& data;
    train::Trainer& trainer;
    io::Loader& loader;
    RunRecords& records;
    CheckpointPolicy& checkpoints;
  };
  StepLoop(const Parts& parts, std::int64_t first_step);

  /// Steps until the last one of this start or a request to stop, with validations and checkpoints.
  /// Collective. Returns the last step.
  std::int64_t run();
  /// The step under way, 0 before the first.
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] bool was_stopped() const { return stop_; }

 private:
  void one_step(std::int64_t step);
  void collect(std::int64_t step);
  void validate(std::int64_t step);
  void note_stop_request();

  Parts parts_;
  std::int64_t first_step_;
  std::int64_t step_ = 0;
  std::int64_t collected_;  // the newest step whose result the host has read
  TargetCheck targets_;
  bool stop_ = false;
};

}  // namespace hyperslab::run
