// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a start goes on from, and what must be the same as when it was written.
#include <fmt/format.h>

#include <filesystem>

#include "algorithms.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/initial.hpp"
#include "training_run.hpp"

namespace hyperslab::run {
namespace {

/// Whether `directory` holds steps, complete or not.
bool holds_steps(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && !name.ends_with(".tmp")) return true;
  }
  return false;
}

}  // namespace

std::string TrainingRun::sample_order() const {
  return fmt::format("seed={} sampling={} context={}", config_.run.seed, config_.data.sampling,
                     config_.model.context);
}

void TrainingRun::check_resumable(const io::CheckpointMeta& meta) const {
  if (meta.samples_seen == 0) return;  // an import: nothing was trained on yet
  if (meta.order != sample_order()) {
    throw Error(
        ExitCode::checkpoint,
        fmt::format("{}: the order of samples changed since step {} ({}): found in the deck "
                    "{}; set run.seed, data.sampling and model.context as they were",
                    checkpoints_, meta.step, meta.order, sample_order()));
  }
  const std::int64_t expected = meta.step * config_.train.global_batch;
  if (meta.samples_seen != expected) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: step {} had seen {} samples, with train.global_batch {} it would "
                            "be {}; resume with the batch it was trained with",
                            checkpoints_, meta.step, meta.samples_seen, config_.train.global_batch,
                            expected));
  }
  if (meta.data_fingerprint != train_tokens_->fingerprint()) {
    throw Error(
        ExitCode::checkpoint,
        fmt::format("{}: the training data changed since step {} (fingerprint {:016x}, now "
                    "{:016x}); resume with the same files in the same order",
                    checkpoints_, meta.step, meta.data_fingerprint, train_tokens_->fingerprint()));
  }
}

void TrainingRun::resume() {
  const std::string& wanted = wanted_resume();
  std::string step = wanted == "never" ? "" : chosen_step(wanted);
  if (step.empty()) return train::start_from_initial(world_, config_, *trainer_);
  for (bool loaded = false; !loaded;) {
    try {
      load(step);
      loaded = true;
    } catch (const Error& error) {  // which every rank throws alike
      const std::string older = wanted == "auto" ? older_than_damaged(step) : "";
      if (older.empty()) throw;
      if (is_first()) log::warn(fmt::format("{}; falling back to step {}", error.what(), older));
      step = older;
    }
  }
  trainer_->share_values();
}

/// A fresh start must not mix its steps with those of an earlier run, nor lose them. Whether there
/// were any, so that the directory is new.
bool TrainingRun::set_earlier_checkpoints_aside() const {
  if (!holds_steps(checkpoints_)) return false;
  if (is_inside(config_.run.directory, checkpoints_)) {
    throw Error(ExitCode::usage,
                fmt::format("--resume never would set aside run.directory {} with the checkpoints "
                            "in checkpoint.directory {}; choose another checkpoint.directory",
                            config_.run.directory, checkpoints_));
  }
  std::string aside;
  for (int n = 1; aside.empty() || std::filesystem::exists(aside); ++n) {
    aside = fmt::format("{}.old.{}", checkpoints_, n);
  }
  std::filesystem::rename(checkpoints_, aside);
  std::filesystem::create_directories(checkpoints_);
  log::info(fmt::format("the checkpoints of the earlier run are now in {}", aside));
  return true;
}

/// Rank 0 chooses, so that all ranks load the same step; empty: nothing to resume from.
std::string TrainingRun::chosen_step(const std::string& wanted) {
  std::string step = wanted == "auto" ? "" : wanted;
  train::agree(world_, [&] {
    if (!is_first() || !step.empty() || !holds_steps(checkpoints_)) return;
    try {
      step = std::to_string(io::CheckpointReader(checkpoints_).meta().step);
    } catch (const Error& error) {  // never from the start over what may still be saved
      throw Error(error.code(), fmt::format("{}\n  restore one of them, or start from step 1 with "
                                            "--resume never",
                                            error.what()));
    }
  });
  return world_.broadcast(step);
}

/// The newest complete step before `step`, empty where `step` has no damaged byte.
std::string TrainingRun::older_than_damaged(const std::string& step) {
  std::string older;
  train::agree(world_, [&] {
    if (!is_first()) return;
    const Pause pause(world_.activity());
    const std::int64_t damaged = std::stoll(step);
    if (io::CheckpointReader(checkpoints_, damaged).verify().empty()) return;
    for (const std::int64_t other : io::list_checkpoints(checkpoints_)) {
      if (other < damaged) older = std::to_string(other);
    }
  });
  return world_.broadcast(older);
}

void TrainingRun::load(const std::string& step) {
  train::agree(world_, [&] {
    const Pause pause(world_.activity());
    const io::CheckpointReader reader(checkpoints_, std::stoll(step));
    check_resumable(reader.meta());
    trainer_->load(reader);  // which names every tensor of another shape
    train::require_same_model(reader.meta(), config_.model, reader.folder());
    first_step_ = reader.meta().step + 1;
    earlier_seconds_ = reader.meta().wall_seconds;
    if (is_first()) algorithms_ = read_algorithms(reader.meta().algorithms, reader.folder());
    if (is_first()) {
      log::info(fmt::format("resumed from {} (step {}, written by {})", reader.folder(),
                            reader.meta().step, reader.meta().layout));
    }
    report_deck_changes(reader.meta());
  });
}

}  // namespace hyperslab::run
