// SPDX-License-Identifier: Apache-2.0
// When a run saves, what it removes for that, and when it does not save; what a start holds while
// it goes on; requests to stop.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/version.hpp"
#include "training_run.hpp"

namespace hyperslab::run {
namespace {

std::string name_of_signal(int signal) {
  switch (signal) {
    case 0: return "to another rank";
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    default: return fmt::format("signal {}", signal);
  }
}

}  // namespace

void TrainingRun::lock_directories() {
  train::agree(world_, [&] {
    if (!is_first()) return;
    const std::string& directory = config_.run.directory;
    const bool by_name = directory == "runs/" + config_.run.name;
    run_lock_ = std::make_unique<RunLock>(directory, world_.host(),
                                          by_name ? "run.name or run.directory" : "run.directory");
    if (run_lock_->is_held()) remove_stale_probes(directory);
    // Another run can name the directory of checkpoints alone, wherever it is.
    if (!is_inside(checkpoints_, directory) || !is_inside(directory, checkpoints_)) {
      lock_checkpoints();
    }
    if (checkpoints_lock_ && checkpoints_lock_->is_held()) remove_stale_probes(checkpoints_);
  });
}

/// Once more after the directory was set aside with the lock that was in it.
void TrainingRun::lock_checkpoints() {
  checkpoints_lock_ =
      std::make_unique<RunLock>(checkpoints_, world_.host(), "checkpoint.directory");
}

void TrainingRun::keep_locks() {
  run_lock_->keep();
  if (checkpoints_lock_) checkpoints_lock_->keep();
}

/// Whether any rank was asked to stop before the first step, on all ranks.
bool TrainingRun::is_asked_to_stop() {
  const bool mine = options_.stop_signal != nullptr && *options_.stop_signal != 0;
  if (world_.all(!mine)) return false;
  if (is_first()) log::info(fmt::format("stopped before step {} on request", first_step_));
  return true;
}

void TrainingRun::note_stop_request() {
  if (!stop_ && is_first()) {
    progress_->finish_line();
    const int signal = options_.stop_signal != nullptr ? *options_.stop_signal : 0;
    log::info(fmt::format("stopping after step {} on request ({})", step_, name_of_signal(signal)));
  }
  stop_ = true;
}

/// Rank 0. Steps newer than the one that was resumed are of an attempt that training went back
/// from, until this start saves them itself.
void TrainingRun::note_abandoned_steps() {
  if (wanted_resume() == "never") return;  // they are set aside
  for (const std::int64_t step : io::list_checkpoints(checkpoints_)) {
    if (step >= first_step_) abandoned_.push_back(step);
  }
  if (abandoned_.empty()) return;
  log::info(fmt::format("checkpoints of {} newer step{} in {} stay until a newer one is saved",
                        abandoned_.size(), abandoned_.size() == 1 ? "" : "s", checkpoints_));
}

/// Rank 0: the newest complete step from which training went on with finite numbers.
std::optional<std::int64_t> TrainingRun::newest_proven() const {
  std::optional<std::int64_t> newest;
  for (const std::int64_t step : io::list_checkpoints(checkpoints_)) {
    const bool abandoned = std::ranges::find(abandoned_, step) != abandoned_.end();
    if (step <= finite_.proven() && !abandoned) newest = step;
  }
  return newest;
}

std::string TrainingRun::advice_to_go_back() const {
  if (!is_first()) return "lower optimizer.lr";
  const auto step = newest_proven();
  if (!step) return "lower optimizer.lr; there is no checkpoint before that";
  return fmt::format(
      "lower optimizer.lr and go on from the newest checkpoint before that: --resume {}", *step);
}

/// What is not finite stays so, and without checkpoints a run is of no use.
Error TrainingRun::save_error(std::int64_t step, const std::string& tensor) const {
  return Error(ExitCode::numerics,
               fmt::format("the last {} checkpoints were not written, the newest of step {}: "
                           "values in {} are not finite; {}",
                           finite_.failed_saves(), step, tensor, advice_to_go_back()))
      .on_all_ranks();
}

Error TrainingRun::numerics_error(const ops::StepResult& result) const {
  return Error(ExitCode::numerics,
               fmt::format("the gradients of the last {} steps were not finite (step {}, loss {}); "
                           "{}",
                           finite_.in_a_row(), result.step, result.loss_sum / result.tokens,
                           advice_to_go_back()))
      .on_all_ranks();
}

/// Where a run ends before its last step it saves; so it does where a checkpoint is still due.
void TrainingRun::checkpoint_at_end(std::int64_t step) {
  if (step < first_step_) return;
  if (finite_.save_is_due() || (step < last_step_ && !saves_behind(step))) save(step, true);
}

/// Nothing is saved, and so nothing removed, after a step that was not finite.
bool TrainingRun::may_save(std::int64_t step, bool at_end) {
  const bool was_due = finite_.save_is_due();
  const FiniteSteps::Save save = finite_.decide(at_end, config_.precision.compute == "fp16");
  if (save == FiniteSteps::Save::now) return true;
  const bool told = save == FiniteSteps::Save::later && (was_due || step == last_step_);
  if (!is_first() || told) return false;
  progress_->finish_line();
  if (save == FiniteSteps::Save::later) {
    log::warn(fmt::format("step {} was not finite: its checkpoint waits for a finite step", step));
    return false;
  }
  const auto newest = newest_proven();
  log::warn(fmt::format("step {} was not finite: no checkpoint of it; {}", step,
                        newest ? fmt::format("the newest before that is of step {}", *newest)
                               : "there is none before that"));
  return false;
}

/// Huge updates leave infinite weights after a step that was itself finite, huge gradients infinite
/// moments. The next regular save looks again.
bool TrainingRun::holds_finite_values(std::int64_t step, const std::vector<io::Slab>& slabs) {
  const std::string bad =
      io::first_not_finite(slabs, trainer_->context().threads(), &world_.activity());
  const std::vector<std::string> all = world_.all_gather(bad);
  const auto first =
      std::ranges::find_if(all, [](const std::string& name) { return !name.empty(); });
  finite_.note_save(first == all.end());
  if (first == all.end()) return true;
  if (finite_.failed_saves() >= FiniteSteps::kMostFailedSaves) throw save_error(step, *first);
  if (is_first() && finite_.failed_saves() == 1) {
    progress_->finish_line();
    log::warn(fmt::format("step {} left values in {} that are not finite: no checkpoint of it",
                          step, *first));
  }
  return false;
}

io::CheckpointMeta TrainingRun::meta_of(std::int64_t step) {
  io::CheckpointMeta meta;
  meta.step = step;
  meta.samples_seen = step * config_.train.global_batch;
  meta.tokens_seen = meta.samples_seen * config_.model.context;
  meta.wall_seconds = wall_seconds();
  meta.data_fingerprint = train_tokens_->fingerprint();
  meta.model = model::identity(config_.model);
  meta.order = sample_order();
  meta.layout = mesh::describe(config_.parallel);
  meta.deck = options_.deck_yaml;
  meta.version = version() + " (" + commit() + ")";
  if (algorithms_.size() > 0) meta.algorithms = algorithms_.text();
  meta.vocabulary = vocabulary_files_;
  trainer_->fill_meta(meta);
  return meta;
}

void TrainingRun::save(std::int64_t step, bool at_end) {
  collect(step);
  if (!may_save(step, at_end)) return;
  const double start = now_seconds();
  train::agree(world_, [&] {
    train_tokens_->require_unchanged();
    if (validation_tokens_) validation_tokens_->require_unchanged();
  });
  const std::vector<io::Slab> slabs = trainer_->slabs();
  if (holds_finite_values(step, slabs)) {
    io::save_checkpoint(world_, checkpoints_, meta_of(step), slabs);
    if (is_first()) {
      const Pause pause(world_.activity());
      const io::CheckpointConfig& policy = config_.checkpoint;
      std::erase(abandoned_, step);
      io::prune_checkpoints(checkpoints_,
                            {policy.keep, policy.keep_every, finite_.proven(), abandoned_});
      progress_->finish_line();
      log::info(fmt::format("checkpoint of step {} in {}", step, checkpoints_));
    }
  }
  trainer_->restart_clock();
  if (!row_) return;
  // The row of this step waits for what its checkpoint cost.
  const double seconds = now_seconds() - start;
  row_->times.phase_seconds[static_cast<std::size_t>(Phase::checkpoint)] += seconds;
  row_->times.step_seconds += seconds;
}

}  // namespace hyperslab::run
