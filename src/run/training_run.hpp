// SPDX-License-Identifier: Apache-2.0
// One start of a run, from open files to the last checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint_policy.hpp"
#include "resume.hpp"
#include "run_data.hpp"
#include "run_locks.hpp"
#include "run_records.hpp"
#include "spikes.hpp"
#include "start.hpp"
#include "step_loop.hpp"

namespace hyperslab::run {

class TrainingRun {
 public:
  /// Collective over the world. Throws Error.
  TrainingRun(comm::World& world, const train::Config& config, const RunOptions& options);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;
  TrainingRun(TrainingRun&&) = delete;
  TrainingRun& operator=(TrainingRun&&) = delete;
  ~TrainingRun() = default;

  /// Errors name the rank's coordinates and the step.
  ExitCode run();

 private:
  void make_trainer();
  void prepare_directories(std::uint64_t bytes);
  void open_memory(const std::string& id);
  void renew_memory();
  void restore_spikes();
  void roll_back(std::int64_t step);
  void require_directory();
  void make_loop();
  [[nodiscard]] bool nothing_left() const {
    return point_.first_step > start_.final_step(data_.last_step());
  }
  ExitCode run_steps();
  void log_nothing_left() const;
  void summarize(std::int64_t step) const;

  Start start_;
  std::optional<RunLocks> locks_;  // released last
  RunData data_;
  RunTasks tasks_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<io::Loader> loader_;
  std::unique_ptr<train::Trainer> trainer_;
  RunSamples samples_;  // uses the trainer
  RunSetting setting_;
  std::optional<io::MemoryCheckpoints> memory_;
  std::string run_id_;  // rank 0's; empty without memory_
  Spikes spikes_;
  ResumePoint point_;
  ops::AlgorithmCache algorithms_;       // equal on all ranks, chosen before the first step
  std::vector<std::int64_t> abandoned_;  // rank 0's
  std::unique_ptr<RunRecords> records_;  // absent if nothing is left to do
  std::unique_ptr<CheckpointPolicy> policy_;
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace hyperslab::run
