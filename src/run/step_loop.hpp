// SPDX-License-Identifier: Apache-2.0
// The steps of one start, one after another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint_policy.hpp"
#include "run_data.hpp"
#include "run_records.hpp"
#include "run_samples.hpp"
#include "run_tasks.hpp"
#include "spikes.hpp"
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
    Spikes& spikes;
    RunTasks& tasks;
    RunSamples& samples;
  };
  StepLoop(const Parts& parts, std::int64_t first_step);

  /// Steps until the last one of this start or a request to stop, with validations and checkpoints.
  /// Collective. Returns the last step.
  std::int64_t run();
  /// The step of the checkpoint to go on from, if a spike ended the steps of run().
  [[nodiscard]] std::optional<std::int64_t> roll_back() const { return roll_back_; }
  /// The step in progress, 0 before the first.
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] bool was_stopped() const { return stop_; }
  [[nodiscard]] std::int64_t broken_images() const { return targets_.broken_images(); }

 private:
  void one_step(std::int64_t step);
  void collect(std::int64_t step);
  template <class Pass>
  auto on_evaluated_weights(Pass&& pass);
  void validate(std::int64_t step);
  void score_tasks(std::int64_t step);
  void sample(std::int64_t step);
  void note_stop_request();
  bool rolls_back_for(const Spikes::Spike& spike);
  void report(const Spikes::Spike& spike, const std::string& what);
  void name_bad_numbers(const train::Trainer::StepArgs& args);

  Parts parts_;
  std::int64_t first_step_;
  std::int64_t step_ = 0;
  std::int64_t collected_;  // the newest step whose result the host has read
  TargetCheck targets_;
  std::optional<std::int64_t> roll_back_;
  int reported_spikes_ = 0;
  bool stop_ = false;
  bool newest_is_bad_ = false;  // the newest step that was looked at had numbers not finite
};

/// In the run's directory: Spikes::left_out_text().
[[nodiscard]] std::string left_out_path(const Start& start);

}  // namespace hyperslab::run
