// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "finite_steps.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"
#include "hyperslab/train/run.hpp"
#include "hyperslab/train/run_lock.hpp"
#include "norms.hpp"
#include "report.hpp"
#include "step_clock.hpp"

namespace hyperslab::train {

/// One start of a run, from open files to the last checkpoint.
class TrainingRun {
 public:
  TrainingRun(comm::World& world, Config config, RunOptions options);
  /// Errors carry the rank's coordinates and the step.
  ExitCode run_and_say_where();

 private:
  ExitCode run();
  void open_data();
  void warn_of_missing_bytes(const Error& error) const;
  void open_vocabulary();
  void count_validation_text();
  void lock_directories();
  void lock_checkpoints();
  void keep_locks();
  void open_records();
  void report_placement();
  [[nodiscard]] const std::string& wanted_resume() const {
    return options_.resume.empty() ? config_.checkpoint.resume : options_.resume;
  }
  void resume();
  [[nodiscard]] bool set_earlier_checkpoints_aside() const;
  void settle_algorithms();
  [[nodiscard]] std::string chosen_step(const std::string& wanted);
  [[nodiscard]] std::string older_than_damaged(const std::string& step);
  void load(const std::string& step);
  [[nodiscard]] std::string sample_order() const;
  void check_resumable(const io::CheckpointMeta& meta) const;
  void report_deck_changes(const io::CheckpointMeta& meta) const;
  /// Whether the checkpoint that was resumed from is at the last step of this start or beyond.
  [[nodiscard]] bool nothing_left() const { return first_step_ > final_step(); }
  ExitCode say_nothing_left() const;
  /// Writes the deck of this start beside those of earlier ones.
  void keep_deck(const std::string& start_folder) const;
  void report_data_amount() const;
  void check_targets(const ops::StepResult& result);
  void summarize(std::int64_t step);
  void name_next_commands(std::int64_t step) const;
  void one_step(std::int64_t step);
  void record(std::int64_t step, const StepTimes& times);
  void record_trace(std::int64_t step);
  void flush_row();
  void account_on_gpu(io::TimingRow& row) const;
  void report(const ops::StepResult& result, double step_seconds);
  void collect(std::int64_t step);
  void validate(std::int64_t step);
  void save(std::int64_t step, bool at_end);
  [[nodiscard]] io::CheckpointMeta meta_of(std::int64_t step);
  void checkpoint(std::int64_t step) { save(step, false); }
  void checkpoint_at_end(std::int64_t step);
  [[nodiscard]] bool may_save(std::int64_t step, bool at_end);
  [[nodiscard]] bool holds_finite_values(std::int64_t step, const std::vector<io::Slab>& slabs);
  [[nodiscard]] Error numerics_error(const ops::StepResult& result) const;
  [[nodiscard]] Error save_error(std::int64_t step, const std::string& tensor) const;
  void note_abandoned_steps();
  [[nodiscard]] std::optional<std::int64_t> newest_proven() const;
  [[nodiscard]] std::string advice_to_go_back() const;
  [[nodiscard]] bool is_asked_to_stop();
  void note_stop_request();
  [[nodiscard]] std::int64_t validation_count() const;
  /// The last step of this start, unless it is asked to stop.
  [[nodiscard]] std::int64_t final_step() const {
    const std::int64_t stop_after = options_.stop_after;
    return stop_after > 0 && stop_after < last_step_ ? stop_after : last_step_;
  }
  [[nodiscard]] bool is_due(std::int64_t step, std::int64_t every) const {
    return (every > 0 && step % every == 0) || step == last_step_;
  }
  [[nodiscard]] bool saves_behind(std::int64_t step) const {
    const io::CheckpointConfig& wanted = config_.checkpoint;
    return (wanted.every > 0 && step % wanted.every == 0) || (wanted.final && step == last_step_);
  }
  [[nodiscard]] bool is_first() const { return world_.rank() == 0; }
  [[nodiscard]] double wall_seconds() const { return earlier_seconds_ + now_seconds() - started_; }

  comm::World& world_;
  Config config_;
  RunOptions options_;
  std::string checkpoints_;
  std::string device_;                         // "cpu", or the name of the GPU
  std::unique_ptr<RunLock> run_lock_;          // of rank 0; released last
  std::unique_ptr<RunLock> checkpoints_lock_;  // of rank 0, unless that is the same directory
  std::unique_ptr<io::TokenSource> train_tokens_;
  std::unique_ptr<io::TokenSource> validation_tokens_;
  std::unique_ptr<io::Samples> train_samples_;
  std::unique_ptr<io::Samples> validation_samples_;
  std::unique_ptr<io::Tokenizer> tokenizer_;  // absent where the deck names none that can be read
  std::vector<io::VocabularyFile> vocabulary_files_;  // of rank 0, for checkpoints
  std::unique_ptr<io::Loader> loader_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<Trainer> trainer_;
  std::map<comm::GroupRole, comm::Traffic> planned_traffic_;  // of one step, by group
  std::unique_ptr<io::MetricsLog> metrics_;
  std::unique_ptr<NormsLog> norms_;
  std::unique_ptr<io::TimingWriter> timing_;
  std::unique_ptr<Progress> progress_;
  ops::AlgorithmCache algorithms_;  // of all ranks, settled before the first step
  std::optional<io::MetricsLine::Validation> validation_;
  std::optional<TextAmount> validation_text_;  // where the vocabulary tells
  double last_loss_ = 0;                       // of the newest step whose result was read
  std::int64_t memory_peak_ = 0;               // bytes of this rank, over the steps of this start
  int without_targets_in_a_row_ = 0;
  std::int64_t first_step_ = 1;
  std::int64_t last_step_ = 0;
  std::int64_t step_ = 0;       // under way
  std::int64_t collected_ = 0;  // the newest step whose result the host has read
  double rate_ = 0;             // FLOP/s of all ranks together
  double flops_causal_ = 0;     // of a step
  double flops_full_ = 0;
  double started_ = 0;
  double earlier_seconds_ = 0;  // of earlier starts
  StepClock step_clock_;
  std::optional<io::TimingRow> row_;  // of the newest step whose result was read
  FiniteSteps finite_{1};
  std::vector<std::int64_t> abandoned_;  // of rank 0: saved steps that this start went back from
  bool stop_ = false;
};

}  // namespace hyperslab::train
