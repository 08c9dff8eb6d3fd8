// SPDX-License-Identifier: Apache-2.0
#include "resume.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>

#include "algorithms.hpp"
#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/run/deck_changes.hpp"
#include "hyperslab/run/run_lock.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "learning_rate_change.hpp"

namespace hyperslab::run {
namespace {

constexpr const char* kStartOver = "choose another run.name, or start over with --resume never";

/// A model that differs in its shapes differs in many tensors; one line names its choices.
void require_model(const io::CheckpointMeta& meta, const train::Config& config,
                   const std::string& folder) {
  try {
    train::require_same_model(meta, config.model, folder);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, {}", error.what(), kStartOver));
  }
}

/// True if `directory` holds steps, complete or not.
bool holds_steps(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step_") && !name.ends_with(".tmp")) return true;
  }
  return false;
}

/// Rank 0's value, on all ranks.
std::optional<std::int64_t> of_first_rank(comm::World& world, std::optional<std::int64_t> step) {
  const std::string text = world.broadcast(step ? std::to_string(*step) : "");
  if (text.empty()) return std::nullopt;
  return std::stoll(text);
}

class Resuming {
 public:
  Resuming(const Start& start, const RunData& data, train::Trainer& trainer,
           const io::MemoryCheckpoints* memory)
      : start_(start), data_(data), trainer_(trainer), memory_(memory) {}
  ResumePoint run();

 private:
  void bring_from_memory() const;
  [[nodiscard]] std::optional<std::int64_t> chosen_step() const;
  [[nodiscard]] std::optional<std::int64_t> older_than_damaged(std::int64_t step) const;
  [[nodiscard]] std::int64_t base_step(std::int64_t step) const;
  void load(std::int64_t step);
  void require_same_order(const io::CheckpointMeta& meta) const;
  void check_resumable(const io::CheckpointMeta& meta) const;
  void report_changes(const io::CheckpointMeta& meta) const;

  const Start& start_;
  const RunData& data_;
  train::Trainer& trainer_;
  const io::MemoryCheckpoints* memory_;
  ResumePoint point_;
};

/// A start that goes back abandons the steps in memory.
void Resuming::bring_from_memory() const {
  const io::ResumeChoice& choice = start_.resume();
  if (memory_ == nullptr) return;
  if (choice.from != io::ResumeFrom::nothing) {
    std::optional<std::int64_t> newest;
    if (start_.is_first()) {
      const std::vector<std::int64_t> steps = io::list_checkpoints(start_.checkpoints);
      if (!steps.empty()) newest = steps.back();
    }
    io::MemoryCheckpoints::Wanted wanted;
    wanted.newer_than = of_first_rank(start_.world, newest).value_or(-1);
    if (choice.from == io::ResumeFrom::step) wanted.only = choice.step;
    wanted.vocabulary = data_.vocabulary_files();
    const auto step = memory_->bring_to_disk(start_.world, start_.checkpoints, wanted);
    if (step && start_.is_first()) {
      log::info(fmt::format("checkpoint of step {} brought from the memory of the hosts to {}",
                            *step, start_.checkpoints));
    }
  }
  if (choice.from != io::ResumeFrom::newest) memory_->clear();
}

/// Throws if the counts of a checkpoint contradict each other.
void check_counts(const io::CheckpointMeta& meta, const std::string& checkpoints) {
  const std::int64_t updates = meta.step - meta.skipped_steps;
  std::string problem;
  if ((meta.step == 0) != (meta.samples_seen == 0)) {
    problem = fmt::format("{} samples", meta.samples_seen);
  } else if (meta.adam_step > meta.step || (meta.adam_step == 0 && updates > 0)) {
    problem = fmt::format("{} updates", meta.adam_step);
  }
  if (problem.empty()) return;
  throw Error(
      ExitCode::checkpoint,
      fmt::format("{}: step {} cannot have seen {}: its manifest was changed; restore it, or "
                  "resume from another step",
                  checkpoints, meta.step, problem));
}

/// More or fewer files also change whether they could be joined: then the data changed.
void Resuming::require_same_order(const io::CheckpointMeta& meta) const {
  constexpr const char* kJoin = "data.join_files";
  const std::string order = train::sample_order(start_.config, meta.step, data_.train_source());
  if (meta.order == order) return;
  const std::string keys = train::differing_order_keys(meta.order, order);
  const bool same_data = meta.data_fingerprint == data_.train_source().fingerprint();
  if (keys == kJoin && !same_data) return;
  const bool joined = meta.order.find("join_files=false") == meta.order.npos;
  const std::string as_before =
      keys == kJoin ? fmt::format("{}: {}, as before", kJoin, joined) : keys + " as before";
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: the order of samples changed since step {} ({}): found in the deck "
                          "{}; resume with {}",
                          start_.checkpoints, meta.step, meta.order, order, as_before));
}

void Resuming::check_resumable(const io::CheckpointMeta& meta) const {
  check_counts(meta, start_.checkpoints);
  if (meta.step == 0) return;  // an import: nothing was trained on yet
  require_same_order(meta);
  const std::int64_t expected = meta.step * start_.config.train.global_batch;
  if (meta.samples_seen != expected) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: step {} had seen {} samples, with train.global_batch {} it would "
                            "be {}; resume with the batch it was trained with, {}",
                            start_.checkpoints, meta.step, meta.samples_seen,
                            start_.config.train.global_batch, expected, kStartOver));
  }
  if (meta.data_fingerprint != data_.train_source().fingerprint()) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: the training data changed since step {} (fingerprint {:016x}, now "
                            "{:016x}); resume with the same files in the same order, and with the "
                            "columns that data.token_weights, train.loss, train.kl_weight and "
                            "train.teacher_tokens read then, {}",
                            start_.checkpoints, meta.step, meta.data_fingerprint,
                            data_.train_source().fingerprint(), kStartOver));
  }
}

/// Rank 0 chooses, so that all ranks load the same step.
std::optional<std::int64_t> Resuming::chosen_step() const {
  const io::ResumeChoice& choice = start_.resume();
  if (choice.from == io::ResumeFrom::nothing) return std::nullopt;
  if (choice.from == io::ResumeFrom::step) return choice.step;
  std::optional<std::int64_t> newest;
  comm::agree(start_.world, [&] {
    if (!start_.is_first() || !holds_steps(start_.checkpoints)) return;
    try {
      newest = io::CheckpointReader(start_.checkpoints).meta().step;
    } catch (const Error& error) {  // never from the start over steps that may be saved
      throw Error(error.code(), fmt::format("{}\n  restore one of them, or start from step 1 with "
                                            "--resume never",
                                            error.what()));
    }
  });
  return of_first_rank(start_.world, newest);
}

/// The newest complete step before `step`; none if `step` has no damaged byte.
std::optional<std::int64_t> Resuming::older_than_damaged(std::int64_t step) const {
  std::optional<std::int64_t> older;
  comm::agree(start_.world, [&] {
    if (!start_.is_first()) return;
    const Pause pause(start_.world.activity(), "verifying a checkpoint");
    if (io::CheckpointReader(start_.checkpoints, step).verify().empty()) return;
    for (const std::int64_t other : io::list_checkpoints(start_.checkpoints)) {
      if (other < step) older = other;
    }
  });
  return of_first_rank(start_.world, older);
}

/// The step of the base whose adapters the step holds; 0: it is damaged, or holds none.
std::int64_t Resuming::base_step(std::int64_t step) const {
  if (!start_.config.adapter) return 0;
  std::optional<std::int64_t> found;
  comm::agree(start_.world, [&] {
    if (start_.is_first()) found = io::CheckpointReader(start_.checkpoints, step).meta().base_step;
  });
  return of_first_rank(start_.world, found).value_or(0);
}

void Resuming::load(std::int64_t step) {
  comm::agree(start_.world, [&] {
    const Pause pause(start_.world.activity(), "loading a checkpoint");
    fault::reach("checkpoint.load");
    const io::CheckpointReader reader(start_.checkpoints, step);
    const io::CheckpointMeta& meta = reader.meta();
    check_resumable(meta);
    train::require_loadable(reader, start_.config, trainer_);
    require_model(meta, start_.config, reader.folder());
    trainer_.state().load(reader);
    point_.first_step = meta.step + 1;
    point_.earlier_seconds = meta.wall_seconds;
    point_.spikes = meta.spikes;
    if (!start_.is_first()) return;
    point_.algorithms = read_algorithms(meta.algorithms, reader.folder());
    log::info(fmt::format("resumed from {} (step {}, written by {})", reader.folder(), meta.step,
                          meta.layout));
    if (meta.step == 0) return;  // an import has not been trained by its deck
    report_changes(meta);
  });
}

void Resuming::report_changes(const io::CheckpointMeta& meta) const {
  const std::string& deck = start_.options.deck_yaml;
  const bool goes_on = point_.first_step <= start_.final_step(data_.last_step());
  report_deck_changes(meta.deck, deck,
                      fmt::format(fmt::runtime(goes_on ? "resuming at step {} with a changed deck: "
                                                       : "the deck differs from that of step {}: "),
                                  meta.step));
  if (!goes_on) return;
  const std::string rate =
      learning_rate_change(meta.deck, deck, start_.config, meta.step, data_.train_samples().size());
  if (!rate.empty()) log::warn(rate);
}

ResumePoint Resuming::run() {
  bring_from_memory();
  std::optional<std::int64_t> step = chosen_step();
  if (!step) {
    train::start_from_initial(start_.world, start_.config, trainer_);
    return point_;
  }
  train::load_base(start_.world, start_.config, trainer_, base_step(*step));
  for (bool loaded = false; !loaded;) {
    try {
      load(*step);
      loaded = true;
    } catch (const Error& error) {  // which every rank throws alike
      if (start_.resume().from != io::ResumeFrom::newest) throw;
      const auto older = older_than_damaged(*step);
      if (!older) throw;
      if (start_.is_first()) {
        log::warn(fmt::format("{}; falling back to step {}", error.what(), *older));
      }
      step = older;
    }
  }
  trainer_.state().share_values();
  return point_;
}

}  // namespace

ResumePoint resume(const Start& start, const RunData& data, train::Trainer& trainer,
                   const io::MemoryCheckpoints* memory) {
  return Resuming(start, data, trainer, memory).run();
}

bool set_earlier_checkpoints_aside(const Start& start) {
  if (!holds_steps(start.checkpoints)) return false;
  if (is_inside(start.config.run.directory, start.checkpoints)) {
    throw Error(ExitCode::usage,
                fmt::format("--resume never would set aside run.directory {} with the checkpoints "
                            "in checkpoint.directory {}; choose another checkpoint.directory",
                            start.config.run.directory, start.checkpoints));
  }
  std::string aside;
  for (int n = 1; aside.empty() || std::filesystem::exists(aside); ++n) {
    aside = fmt::format("{}.old.{}", start.checkpoints, n);
  }
  std::filesystem::rename(start.checkpoints, aside);
  std::filesystem::create_directories(start.checkpoints);
  log::info(fmt::format("the checkpoints of the earlier run are now in {}", aside));
  return true;
}

}  // namespace hyperslab::run
