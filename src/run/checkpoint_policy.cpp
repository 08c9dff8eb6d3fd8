// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/train/setup.hpp"

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
    : parts_(std::move(parts)), first_step_(first_step), finite_(first_step) {}

void CheckpointPolicy::add(const ops::StepResult& result) {
  finite_.add(result);
  if (finite_.in_a_row() > FiniteSteps::kMostInARow) throw numerics_error(result);
}

bool CheckpointPolicy::is_regular(std::int64_t step) const {
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  return (config.every > 0 && step % config.every == 0) ||
         (config.final && step == parts_.data.last_step());
}

bool CheckpointPolicy::is_due_after(std::int64_t step) const {
  return is_regular(step) || finite_.save_is_due();
}

void CheckpointPolicy::save_at_end(std::int64_t step) {
  if (step < first_step_) return;
  const bool ends_early = step < parts_.data.last_step() && !is_regular(step);
  if (finite_.save_is_due() || ends_early) save(step, true);
}

/// Nothing is saved, and so nothing removed, after a step that was not finite.
bool CheckpointPolicy::may_save(std::int64_t step, bool at_end) {
  const bool was_due = finite_.save_is_due();
  const FiniteSteps::Save save =
      finite_.decide(at_end, parts_.start.config.precision.compute == Precision::fp16);
  if (save == FiniteSteps::Save::now) return true;
  const bool told =
      save == FiniteSteps::Save::later && (was_due || step == parts_.data.last_step());
  if (!parts_.start.is_first() || told) return false;
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

/// Huge updates leave infinite weights after a step that was itself finite, huge gradients infinite
/// moments. The next regular save looks again.
bool CheckpointPolicy::holds_finite_values(std::int64_t step, const std::vector<io::Slab>& slabs) {
  const std::string bad = io::first_not_finite(slabs, parts_.trainer.context().threads(),
                                               &parts_.start.world.activity());
  const std::vector<std::string> all = parts_.start.world.all_gather(bad);
  const auto first =
      std::ranges::find_if(all, [](const std::string& name) { return !name.empty(); });
  finite_.note_save(first == all.end());
  if (first == all.end()) return true;
  if (finite_.failed_saves() >= FiniteSteps::kMostFailedSaves) throw save_error(*first, step);
  if (parts_.start.is_first() && finite_.failed_saves() == 1) {
    parts_.records.finish_line();
    log::warn(fmt::format("step {} left values in {} that are not finite: no checkpoint of it",
                          step, *first));
  }
  return false;
}

io::CheckpointMeta CheckpointPolicy::meta_of(std::int64_t step) const {
  const train::Config& config = parts_.start.config;
  io::CheckpointMeta meta;
  meta.step = step;
  meta.samples_seen = step * config.train.global_batch;
  meta.tokens_seen = meta.samples_seen * config.model.context;
  meta.wall_seconds = parts_.records.wall_seconds();
  meta.data_fingerprint = parts_.data.train_tokens().fingerprint();
  meta.model = model::identity(config.model);
  meta.order = parts_.data.sample_order();
  meta.layout = mesh::describe(config.parallel);
  meta.deck = parts_.start.options.deck_yaml;
  meta.version = version() + " (" + commit() + ")";
  if (parts_.algorithms.size() > 0) meta.algorithms = parts_.algorithms.text();
  meta.vocabulary = parts_.data.vocabulary_files();
  parts_.trainer.fill_meta(meta);
  return meta;
}

/// Rank 0, after the step was saved.
void CheckpointPolicy::prune(std::int64_t step) {
  const Pause pause(parts_.start.world.activity());
  const io::CheckpointConfig& config = parts_.start.config.checkpoint;
  std::erase(parts_.abandoned, step);
  io::prune_checkpoints(parts_.start.checkpoints,
                        {config.keep, config.keep_every, finite_.proven(), parts_.abandoned});
  parts_.records.finish_line();
  log::info(fmt::format("checkpoint of step {} in {}", step, parts_.start.checkpoints));
}

void CheckpointPolicy::save(std::int64_t step, bool at_end) {
  if (!may_save(step, at_end)) return;
  const double start = now_seconds();
  comm::agree(parts_.start.world, [&] { parts_.data.require_unchanged(); });
  const std::vector<io::Slab> slabs = parts_.trainer.slabs();
  if (holds_finite_values(step, slabs)) {
    io::save_checkpoint(parts_.start.world, parts_.start.checkpoints, meta_of(step), slabs);
    if (parts_.start.is_first()) prune(step);
  }
  parts_.trainer.restart_clock();
  parts_.records.charge_checkpoint(now_seconds() - start);
  parts_.start.stop->note_pause(now_seconds() - start);
  parts_.start.stop->note_save(now_seconds() - start);
}

/// Rank 0: the newest complete step from which training went on with finite numbers.
std::optional<std::int64_t> CheckpointPolicy::newest_proven() const {
  std::optional<std::int64_t> newest;
  for (const std::int64_t step : io::list_checkpoints(parts_.start.checkpoints)) {
    const bool abandoned = std::ranges::find(parts_.abandoned, step) != parts_.abandoned.end();
    if (step <= finite_.proven() && !abandoned) newest = step;
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

/// What is not finite stays so, and without checkpoints a run is of no use.
Error CheckpointPolicy::save_error(const std::string& tensor, std::int64_t step) const {
  return Error(ExitCode::numerics,
               fmt::format("the last {} checkpoints were not written, the newest of step {}: "
                           "values in {} are not finite; {}",
                           finite_.failed_saves(), step, tensor, advice_to_go_back()))
      .on_all_ranks();
}

Error CheckpointPolicy::numerics_error(const ops::StepResult& result) const {
  return Error(ExitCode::numerics,
               fmt::format("the gradients of the last {} steps were not finite (step {}, loss {}); "
                           "{}",
                           finite_.in_a_row(), result.step, result.loss_sum / result.tokens,
                           advice_to_go_back()))
      .on_all_ranks();
}

}  // namespace hyperslab::run
