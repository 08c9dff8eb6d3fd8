// SPDX-License-Identifier: Apache-2.0
#include "run_data.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/mixture.hpp"
#include "hyperslab/io/packing.hpp"
#include "hyperslab/train/same_data.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::run {
namespace {

constexpr double kManyEpochs = 10;
constexpr int kMostWithoutTargets = 10;  // steps in a row

}  // namespace

RunData::RunData(const Start& start) : start_(start) {
  open_vocabulary();
  comm::agree(start_.world, [&] { open(); });
  train::require_same_data(start_.world, {{"data.train", data_.train.get()},
                                          {"data.validation", data_.validation.get()}});
  report_amount();
}

void RunData::open() {
  const Pause pause(start_.world.activity(), "reading the training data");
  fault::reach("start.data");
  const train::Config& config = start_.config;
  const std::int64_t ids = tokenizer_ ? tokenizer_->vocabulary() : 0;
  data_ = train::open_data(config, io::DataPart::both, ids);
  if (tokenizer_) train::require_same_vocabulary(data_, *tokenizer_, config);
  (void)data_.train
      ->fingerprint();  // fingerprints the data of the first step, not of the first checkpoint
  last_step_ = train::total_steps(config, train_samples().size());
  if (config.schedule.warmup_steps > last_step_) {
    throw Error(
        ExitCode::usage,
        fmt::format("schedule.warmup_steps is {}, but the run has only {} steps ({} epochs of {} "
                    "samples); nearest: {}",
                    config.schedule.warmup_steps, last_step_, config.train.epochs,
                    train_samples().size(), last_step_));
  }
}

void RunData::report_packing() const {
  std::optional<io::PackingFigures> found;
  if (const auto* packed = dynamic_cast<const io::PackedSamples*>(&train_samples())) {
    found = packed->figures();
  } else if (const auto* mixture = dynamic_cast<const io::MixedSamples*>(&train_samples())) {
    found = mixture->packing();
  }
  if (!found) return;
  const auto percent = [](std::int64_t part, std::int64_t all) {
    return 100 * static_cast<double>(part) / static_cast<double>(all);
  };
  const std::int64_t context = start_.config.model.context;
  log::info(fmt::format(
      "packing {}: {} documents, {} pieces, {} samples of {} tokens, {:.2f} % of them padding; "
      "{:.2f} % of the documents are cut (contiguous: {:.2f} %)",
      io::name_of(start_.config.data.packing), found->documents, found->pieces, found->samples,
      context, percent(found->padding, found->samples * context),
      percent(found->cut, found->documents), percent(found->cut_contiguous, found->documents)));
}

void RunData::report_left_out_files() const {
  const train::Config& config = start_.config;
  const auto report = [&](const char* key, const io::DataSource* source) {
    if (source == nullptr) return;
    const std::string text = train::left_out_files(*source, config.model.context);
    if (!text.empty()) log::warn(fmt::format("{}: {}", key, text));
  };
  if (config.data.packing == io::Packing::contiguous) report("data.train", data_.train.get());
  report("data.validation", data_.validation.get());
}

void RunData::report_mixture(const io::MixedSamples& mixture) const {
  const std::int64_t all = last_step_ * start_.config.train.global_batch;
  const std::vector<std::int64_t> counts = mixture.schedule().counts(all);
  const std::vector<std::int64_t> sizes = mixture.sizes();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double epochs = static_cast<double>(counts[i]) / static_cast<double>(sizes[i]);
    const std::string amount = fmt::format(
        "mixture: '{}' {} of {} samples, {:.4g} %, {:.3g} epochs of its {}",
        start_.config.data.train[i], counts[i], all,
        100 * static_cast<double>(counts[i]) / static_cast<double>(all), epochs, sizes[i]);
    if (epochs > kManyEpochs) {
      log::warn(amount + "; the model sees every one many times: give more data or a lower weight");
    } else {
      log::info(amount);
    }
  }
}

void RunData::open_vocabulary() {
  const std::string& vocabulary = start_.config.data.vocabulary;
  if (vocabulary.empty()) return;
  comm::agree(start_.world, [&] {
    const Pause pause(start_.world.activity(), "reading the vocabulary");
    tokenizer_ = io::open_tokenizer(vocabulary);
    io::require_fits_model(*tokenizer_, vocabulary, start_.config.model.vocabulary);
    if (start_.is_first()) vocabulary_files_ = io::read_vocabulary_files(vocabulary);
  });
  warn_of_another_end();
  report_padding();
}

void RunData::report_padding() const {
  const std::int64_t rows = start_.config.model.vocabulary - tokenizer_->vocabulary();
  if (!start_.is_first() || rows == 0) return;
  log::info(fmt::format(
      "model.vocabulary is {}, and data.vocabulary '{}' has {} ids: {} rows of the model's tables "
      "pad it",
      start_.config.model.vocabulary, start_.config.data.vocabulary, tokenizer_->vocabulary(),
      rows));
}

/// Other programs than `tokenize` may end documents otherwise.
void RunData::warn_of_another_end() const {
  const std::int32_t given = start_.config.data.end_token;
  const std::int32_t end = tokenizer_->end_of_text();
  if (!start_.is_first() || given < 0 || end < 0 || given == end) return;
  log::warn(
      fmt::format("data.end_token is {}, and the end of text of data.vocabulary {}, with "
                  "which tokenize ends documents",
                  given, end));
}

void RunData::report_amount() const {
  const train::TrainConfig& train = start_.config.train;
  if (!start_.is_first() || train.overfit_one_batch) return;
  if (train_source().description().starts_with("synthetic")) return;
  report_packing();
  report_left_out_files();
  if (const auto* mixture = dynamic_cast<const io::MixedSamples*>(&train_samples())) {
    return report_mixture(*mixture);
  }
  const std::int64_t samples = train_samples().size();
  const std::int64_t batch = train.global_batch;
  const double epochs =
      static_cast<double>(last_step_) * static_cast<double>(batch) / static_cast<double>(samples);
  const bool images = start_.config.model.is_of_images();
  const char* unit = images ? "image" : "sample";
  const std::string length =
      images ? "" : fmt::format(" ({} tokens each)", start_.config.model.context);
  const std::string amount =
      fmt::format("{} steps of {} {}s are {:.3g} epochs of the {} training {}s{}", last_step_,
                  batch, unit, epochs, samples, unit, length);
  if (samples < batch) {
    log::warn(amount +
              fmt::format("; a batch holds some {}s more than once: give more data or a smaller "
                          "train.global_batch",
                          unit));
  } else if (epochs > kManyEpochs) {
    log::warn(amount + fmt::format("; the model sees every {} many times: give more data or fewer "
                                   "steps",
                                   unit));
  } else {
    log::info(amount);
  }
}

std::int64_t RunData::validation_count() const {
  return train::validation_samples(start_.config, validation_samples()->size());
}

/// A run goes on without bits per byte, which only help to read the loss.
void RunData::warn_of_missing_bytes(const Error& error) const {
  if (error.code() != ExitCode::data) throw error;
  if (start_.is_first() && validation_samples() != nullptr) {
    log::warn(std::string("validation without bits per byte: ") + error.what());
  }
}

std::optional<train::TextAmount> RunData::count_validation_text() const {
  const auto* samples = dynamic_cast<const io::TokenSamples*>(validation_samples());
  if (samples == nullptr || !tokenizer_) return std::nullopt;
  try {
    const train::TextAmount text =
        train::count_text(*samples, validation_count(), *tokenizer_, start_.world);
    if (text.bytes > 0) return text;
  } catch (const Error& error) {
    warn_of_missing_bytes(error);
  }
  return std::nullopt;
}

void RunData::require_unchanged() const {
  data_.train->require_unchanged();
  if (data_.validation) data_.validation->require_unchanged();
}

TargetCheck::TargetCheck(const train::Config& config)
    : images_(config.model.is_of_images() ? config.train.global_batch : 0) {}

void TargetCheck::add(const ops::StepResult& result, bool warns) {
  if (images_ > 0) broken_images_ += images_ - std::llround(result.tokens);
  without_targets_in_a_row_ = result.weights > 0 ? 0 : without_targets_in_a_row_ + 1;
  if (without_targets_in_a_row_ == 0) return;
  const std::string what = fmt::format(
      "no {} of the batch of step {} counts as a target, so it has no loss and no gradient; "
      "see {}",
      images_ > 0 ? "image" : "token", result.step,
      images_ > 0 ? "data.broken_images"
                  : "data.ignore_token, data.loss_mask and data.token_weights");
  if (without_targets_in_a_row_ > kMostWithoutTargets) {
    throw Error(ExitCode::data,
                fmt::format("{} steps in a row: {}", without_targets_in_a_row_, what))
        .on_all_ranks();
  }
  if (without_targets_in_a_row_ == 1 && warns) log::warn(what);
}

}  // namespace hyperslab::run
