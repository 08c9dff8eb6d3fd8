// SPDX-License-Identifier: Apache-2.0
// When a run saves, which checkpoints it removes for that, and when it does not save.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint_writer.hpp"
#include "finite_steps.hpp"
#include "run_data.hpp"
#include "run_records.hpp"
#include "spikes.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// Rank 0: saved steps that this start goes back from, because it resumes from an earlier one. They
/// are of an attempt that training abandoned, and stay until this start saves a newer step itself.
[[nodiscard]] std::vector<std::int64_t> abandoned_steps(const Start& start,
                                                        std::int64_t first_step);

class CheckpointPolicy {
 public:
  struct Parts {
    const Start& start;
    const RunData& data;
    train::Trainer& trainer;
    RunRecords& records;
    const ops::AlgorithmCache& algorithms;    ///< in use, to be kept
    const Spikes& spikes;                     ///< to be kept as they are after a step
    std::vector<std::int64_t> abandoned;      ///< abandoned_steps(), on rank 0
    const io::MemoryCheckpoints* memory;      ///< null if the deck wants none
    std::function<void()> require_directory;  ///< rank 0, before a save: see RunLocks::renew()
  };
  /// Collective: all ranks together decide if checkpoints are written during training.
  CheckpointPolicy(Parts parts, std::int64_t first_step);

  /// The result of every step in order. Throws Error(numerics), the same on all ranks, after too
  /// many steps in a row that were not finite.
  void add(const ops::StepResult& result);
  /// True if the deck asks for a checkpoint after the step, or one waits for a finite step.
  [[nodiscard]] bool is_due_after(std::int64_t step) const;
  /// Saves the state after `step`, the newest that was enqueued and added, unless a number of it is
  /// not finite, and removes steps that the deck does not keep: beside training, or before it
  /// returns if the deck or the host's memory want that. Waits for an earlier save. Collective.
  /// Throws Error(storage) and Error(numerics) after too many saves in a row that wrote nothing.
  void save(std::int64_t step) { save(step, false); }
  /// At the end of a start: saves if the run has not come to its last step, or a checkpoint waits,
  /// and waits until everything is written. Throws Error(storage) if the newest save failed.
  void save_at_end(std::int64_t step);
  /// The newest complete checkpoint up to `step` from which training went on with finite numbers;
  /// waits for a save that is in progress. Collective.
  [[nodiscard]] std::optional<std::int64_t> newest_up_to(std::int64_t step);
  /// Moves a save that is in progress; never blocks.
  void progress() { writer_.progress(); }
  /// Calls progress(), and reports the outcome of a save that ended.
  void poll();
  /// Waits for a save that is in progress. Collective.
  void finish_save();

 private:
  [[nodiscard]] bool is_regular(std::int64_t step) const;
  [[nodiscard]] bool is_for_memory(std::int64_t step) const;
  void save_in_memory(std::int64_t step);
  void save(std::int64_t step, bool at_end);
  [[nodiscard]] bool may_save(std::int64_t step, bool at_end);
  [[nodiscard]] io::CheckpointMeta meta_of(std::int64_t step) const;
  [[nodiscard]] SaveJob job_of(std::int64_t step, std::vector<io::Slab> slabs);
  void take(const SaveOutcome& outcome);
  void take_of_memory(const SaveOutcome& outcome);
  void wait_for_save();
  void report_wait(double seconds);
  void end_pause(double start);
  void require_good_saves() const;
  [[nodiscard]] std::optional<std::int64_t> newest_proven(
      std::int64_t up_to = std::numeric_limits<std::int64_t>::max()) const;
  [[nodiscard]] std::string advice_to_go_back() const;
  [[nodiscard]] Error numerics_error(const ops::StepResult& result) const;
  [[nodiscard]] Error save_error() const;

  Parts parts_;
  std::int64_t first_step_;
  FiniteSteps finite_;
  std::unique_ptr<train::SnapshotBuffer> buffer_;  ///< null: saves are written at once
  CheckpointWriter writer_;
  bool wait_reported_ = false;
  std::set<std::string> memory_failures_;  ///< reported since a save in memory went well
  SaveOutcome newest_;                     ///< the newest save to the disk that ended
  int failures_ = 0;                       ///< newest saves that storage refused
};

}  // namespace hyperslab::run
