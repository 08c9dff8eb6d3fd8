// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a start goes on from, and what must be the same as when it was written.
#include <fmt/format.h>

#include <filesystem>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "training_run.hpp"

namespace hyperslab::train {
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

void TrainingRun::check_resumable(const io::CheckpointMeta& meta) const {
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
  const std::string& wanted = options_.resume.empty() ? config_.checkpoint.resume : options_.resume;
  if (wanted == "never") return;
  for (std::string step = chosen_step(wanted); !step.empty();) {
    try {
      return load(step);
    } catch (const Error& error) {  // which every rank throws alike
      const std::string older = wanted == "auto" ? older_than_damaged(step) : "";
      if (older.empty()) throw;
      if (is_first()) log::warn(fmt::format("{}; falling back to step {}", error.what(), older));
      step = older;
    }
  }
}

/// Rank 0 chooses, so that all ranks load the same step; empty: nothing to resume from.
std::string TrainingRun::chosen_step(const std::string& wanted) {
  std::string step = wanted == "auto" ? "" : wanted;
  agree(world_, [&] {
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
  agree(world_, [&] {
    if (!is_first()) return;
    const std::int64_t damaged = std::stoll(step);
    if (io::CheckpointReader(checkpoints_, damaged).verify().empty()) return;
    for (const std::int64_t other : io::list_checkpoints(checkpoints_)) {
      if (other < damaged) older = std::to_string(other);
    }
  });
  return world_.broadcast(older);
}

void TrainingRun::load(const std::string& step) {
  agree(world_, [&] {
    const io::CheckpointReader reader(checkpoints_, std::stoll(step));
    check_resumable(reader.meta());
    trainer_->load(reader);
    first_step_ = reader.meta().step + 1;
    earlier_seconds_ = reader.meta().wall_seconds;
    if (is_first()) {
      log::info(fmt::format("resumed from {} (step {}, written by {})", reader.folder(),
                            reader.meta().step, reader.meta().layout));
    }
  });
}

}  // namespace hyperslab::train
