// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/setup.hpp"
#include "snapshot_room.hpp"

namespace hyperslab::run {

std::vector<std::int64_t> abandoned_steps(const Start& start, std::int64_t first_step) {
  std::vector<std::int64_t> abandoned;
  if (start.resume().from == io::ResumeFrom::nothing) return abandoned;  // they are set aside
  for (const std::int64_t step : io::list_checkpoints(start.checkpoints)) {
    if (step >= first_step) abandoned.push_back(step);
  }
  if (!abandoned.empty()) {
    log::info(fmt::format("checkpoints of {} newer step{} in {} stay until a newer one is saved",
                          abandoned.size(), abandoned.size() == 1 ? "" : "s", start.checkpoints));
  }
  return abandoned;
}

CheckpointPolicy::CheckpointPolicy(Parts parts, std::int64_t first_step)
    : parts_(std::move(parts)),
      first_step_(first_step),
      finite_(first_step),
      buffer_(make_snapshot_buffer(parts_.start, parts_.trainer)),
      writer_(parts_.start.world, parts_.start.checkpoints) {}

void CheckpointPolicy::add(const ops::StepResult& result) {
  finite_.add(result);
  if (finite_.in_a_row() > FiniteSteps::kMostInARow) throw numerics_error(result);
}

bool CheckpointPolicy::is_regular(std::int64_t step) const {
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  return (config.every > 0 && step % config.every == 0) ||
         (config.final && step == parts_.data.last_step());
}

bool CheckpointPolicy::is_for_memory(std::int64_t step) const {
  const std::int64_t every = parts_.start.config.checkpoint.memory_every;
  return parts_.memory != nullptr && buffer_ != nullptr && every > 0 && step % every == 0 &&
         !is_regular(step) && !finite_.save_is_due();
}

bool CheckpointPolicy::is_due_after(std::int64_t step) const {
  return is_regular(step) || finite_.save_is_due() || is_for_memory(step);
}

void CheckpointPolicy::save_at_end(std::int64_t step) {
  if (step >= first_step_) {
    const bool ends_early = step < parts_.data.last_step() && !is_regular(step);
    if (finite_.save_is_due() || ends_early) save(step, true);
  }
  wait_for_save();
  if (!newest_.failure.empty()) {
    throw Error(ExitCode::storage, newest_.failure).on_all_ranks();
  }
}

/// Nothing is saved, and so nothing removed, after a step that was not finite.
bool CheckpointPolicy::may_save(std::int64_t step, bool at_end) {
  const bool was_due = finite_.save_is_due();
  const FiniteSteps::Save save =
      finite_.decide(at_end, parts_.start.config.precision.compute == Precision::fp16);
  if (save == FiniteSteps::Save::now) return true;
  const bool reported =
      save == FiniteSteps::Save::later && (was_due || step == parts_.data.last_step());
  if (!parts_.start.is_first() || reported) return false;
  parts_.records.finish_line();
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

io::CheckpointMeta CheckpointPolicy::meta_of(std::int64_t step) const {
  const train::Config& config = parts_.start.config;
  io::CheckpointMeta meta;
  meta.step = step;
  meta.samples_seen = step * config.train.global_batch;
  meta.tokens_seen = meta.samples_seen * config.model.context;
  meta.wall_seconds = parts_.records.wall_seconds();
  meta.data_fingerprint = parts_.data.train_source().fingerprint();
  meta.model = model::identity(config.model);
  meta.order = train::sample_order(config, step, parts_.data.train_source());
  meta.layout = mesh::describe(config.parallel);
  meta.deck = parts_.start.options.deck_yaml;
  std::error_code removed_meanwhile;
  meta.started_in = std::filesystem::current_path(removed_meanwhile).string();
  meta.version = version() + " (" + commit() + ")";
  if (parts_.algorithms.size() > 0) meta.algorithms = parts_.algorithms.text();
  meta.vocabulary = parts_.data.vocabulary_files();
  meta.spikes = parts_.spikes.checkpoint_text();
  parts_.trainer.state().fill_meta(meta);
  return meta;
}

SaveJob CheckpointPolicy::job_of(std::int64_t step, std::vector<io::Slab> slabs) {
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  SaveJob job;
  job.meta = meta_of(step);
  job.slabs = std::move(slabs);
  job.options.activity = &parts_.start.world.activity();
  job.keep = {config.keep, config.keep_every, finite_.proven(), parts_.abandoned};
  std::erase(job.keep.abandoned, step);
  return job;
}

/// Left out while the disk is still busy with the save before, and after a step that was not
/// finite.
void CheckpointPolicy::save_in_memory(std::int64_t step) {
  if (!finite_.newest_is_finite()) return;
  const double start = now_seconds();
  poll();
  if (!parts_.start.world.all(!writer_.is_busy())) return;
  train::Snapshot snapshot = parts_.trainer.state().snapshot(*buffer_);
  SaveJob job = job_of(step, std::move(snapshot.slabs));
  job.memory = parts_.memory;
  writer_.start(std::move(job), snapshot.ready);
  end_pause(start);
}

void CheckpointPolicy::save(std::int64_t step, bool at_end) {
  if (!at_end && is_for_memory(step)) return save_in_memory(step);
  if (!may_save(step, at_end)) return;
  const double start = now_seconds();
  wait_for_save();
  comm::agree(parts_.start.world, [&] {
    fault::reach("checkpoint.snapshot");
    if (parts_.start.is_first()) parts_.require_directory();
    parts_.data.require_unchanged();
  });
  if (buffer_) {
    train::Snapshot snapshot = parts_.trainer.state().snapshot(*buffer_);
    writer_.start(job_of(step, std::move(snapshot.slabs)), snapshot.ready);
  } else {
    SaveJob job = job_of(step, parts_.trainer.state().slabs_in_place());
    if (parts_.trainer.context().device() != Device::cpu) {
      job.options.fetch = [this](std::span<const io::Slab> slabs) {
        return parts_.trainer.state().fetch(slabs);
      };
    }
    take(writer_.write(job));
    require_good_saves();
  }
  end_pause(start);
}

/// Charges training's wait since `start` to the checkpoint.
void CheckpointPolicy::end_pause(double start) {
  parts_.trainer.inspection().restart_clock();
  parts_.records.charge_checkpoint(now_seconds() - start);
  parts_.start.stop->note_pause(now_seconds() - start);
}

void CheckpointPolicy::poll() {
  if (const auto outcome = writer_.poll()) take(*outcome);
}

void CheckpointPolicy::finish_save() {
  if (const auto outcome = writer_.finish()) take(*outcome);
}

void CheckpointPolicy::wait_for_save() {
  const double start = now_seconds();
  finish_save();
  report_wait(now_seconds() - start);
  require_good_saves();
}

/// Rank 0 reports once that the disk is too slow for the deck.
void CheckpointPolicy::report_wait(double seconds) {
  constexpr double kWorthReporting = 1;
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  const bool is_at_end = newest_.step + config.every > parts_.data.last_step();
  if (seconds < kWorthReporting || is_at_end || !parts_.start.is_first()) return;
  if (std::exchange(wait_reported_, true)) return;
  parts_.records.finish_line();
  log::warn(
      fmt::format("training waited {:.1f} s for the checkpoint of step {}, which took {:.1f} "
                  "s: its disk is too slow for checkpoint.every {}",
                  seconds, newest_.step, newest_.seconds, config.every));
}

/// The disk has the checkpoints that count: of failures that differ in their numbers alone the
/// first is reported, and the next one after a save that went well.
void CheckpointPolicy::take_of_memory(const SaveOutcome& outcome) {
  if (outcome.failure.empty()) return memory_failures_.clear();
  std::string kind = outcome.failure;
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  const bool is_new = memory_failures_.insert(kind).second;
  if (!is_new || !parts_.start.is_first()) return;
  parts_.records.finish_line();
  log::warn(fmt::format("in memory: {}; this is reported again once a save in memory went well",
                        outcome.failure));
}

/// Ranks come here at different steps, so nothing is thrown.
void CheckpointPolicy::take(const SaveOutcome& outcome) {
  if (outcome.in_memory) return take_of_memory(outcome);
  newest_ = outcome;
  finite_.note_save(outcome.not_finite.empty());
  failures_ = outcome.failure.empty() ? 0 : failures_ + 1;
  parts_.start.stop->note_save(outcome.seconds);
  if (outcome.is_saved()) std::erase(parts_.abandoned, outcome.step);
  if (!parts_.start.is_first()) return;
  parts_.records.finish_line();
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  if (outcome.is_saved()) {
    log::info(fmt::format("checkpoint of step {} in {}, after {:.1f} s", outcome.step,
                          parts_.start.checkpoints, outcome.seconds));
  } else if (!outcome.failure.empty()) {
    log::warn(fmt::format("{}; {} of checkpoint.max_failures {} in a row", outcome.failure,
                          failures_, config.max_failures));
  } else if (finite_.failed_saves() == 1) {
    log::warn(fmt::format("step {} left values in {} that are not finite: no checkpoint of it",
                          outcome.step, outcome.not_finite));
  }
}

/// Called where all ranks have taken the same outcomes.
void CheckpointPolicy::require_good_saves() const {
  if (finite_.failed_saves() >= FiniteSteps::kMostFailedSaves) throw save_error();
  if (failures_ < parts_.start.config.checkpoint.max_failures) return;
  throw Error(ExitCode::storage, failures_ == 1 ? newest_.failure
                                                : fmt::format("{}; {} saves in a row failed",
                                                              newest_.failure, failures_))
      .on_all_ranks();
}

std::optional<std::int64_t> CheckpointPolicy::newest_up_to(std::int64_t step) {
  wait_for_save();
  const bool first = parts_.start.is_first();
  const std::optional<std::int64_t> newest = first ? newest_proven(step) : std::nullopt;
  const std::string found = parts_.start.world.broadcast(newest ? std::to_string(*newest) : "");
  if (found.empty()) return std::nullopt;
  return std::stoll(found);
}

/// Rank 0: the newest complete step from which training went on with finite numbers.
std::optional<std::int64_t> CheckpointPolicy::newest_proven(std::int64_t up_to) const {
  std::optional<std::int64_t> newest;
  for (const std::int64_t step : io::list_checkpoints(parts_.start.checkpoints)) {
    const bool abandoned = std::ranges::find(parts_.abandoned, step) != parts_.abandoned.end();
    if (step <= std::min(up_to, finite_.proven()) && !abandoned) newest = step;
  }
  return newest;
}

std::string CheckpointPolicy::advice_to_go_back() const {
  if (!parts_.start.is_first()) return "lower optimizer.lr";
  const auto step = newest_proven();
  if (!step) return "lower optimizer.lr; there is no checkpoint before that";
  return fmt::format(
      "lower optimizer.lr and go on from the newest checkpoint before that: --resume {}", *step);
}

/// Huge updates leave infinite weights after a step that was itself finite, huge gradients infinite
/// moments. Such numbers stay infinite, and without checkpoints a run is of no use.
Error CheckpointPolicy::save_error() const {
  return Error(ExitCode::numerics,
               fmt::format("the last {} checkpoints were not written, the newest of step {}: "
                           "values in {} are not finite; {}",
                           finite_.failed_saves(), newest_.step, newest_.not_finite,
                           advice_to_go_back()))
      .on_all_ranks();
}

Error CheckpointPolicy::numerics_error(const ops::StepResult& result) const {
  return Error(ExitCode::numerics,
               fmt::format("the gradients of the last {} steps were not finite (step {}, loss {}); "
                           "{}",
                           finite_.in_a_row(), result.step, result.loss(), advice_to_go_back()))
      .on_all_ranks();
}

}  // namespace hyperslab::run
