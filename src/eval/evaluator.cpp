// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/evaluator.hpp"

#include <chrono>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/same_data.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::eval {

Evaluator::Evaluator(comm::World& world, EvalDeck deck, std::int64_t stride)
    : world_(world), config_(std::move(deck.config)), validation_batch_(deck.validation_batch) {
  comm::agree(world_, [&] {
    if (!config_.data.vocabulary.empty()) {
      tokenizer_ = io::open_tokenizer(config_.data.vocabulary);
      io::require_fits_model(*tokenizer_, config_.data.vocabulary, config_.model.vocabulary);
    }
    open_data();
    make_samples(stride);
  });
  train::require_same_data(world_, {{"the evaluated data", data_.validation.get()}});
  const auto* samples = dynamic_cast<const io::TokenSamples*>(data_.validation_samples.get());
  if (tokenizer_ && samples != nullptr && !config_.data.token_weights) {
    text_ = train::count_text(*samples, count_, *tokenizer_, world_);
  }
  train::TrainerOptions options;
  comm::agree(world_,
              [&] { options = train::trainer_options(config_, world_.local_rank(), false); });
  options.activity = &world_.activity();
  mesh_ = train::make_mesh(world_, config_, options.device);
  model_ = std::make_unique<LoadedModel>(LoadedModel::Parts{
      world_, config_, *mesh_, options, std::move(deck.is_legal), deck.averages});
}

const io::ImageSet* Evaluator::images() const {
  return dynamic_cast<const io::ImageSet*>(data_.validation.get());
}

Result Evaluator::measure(const std::string& checkpoint, Predictions* predictions) {
  Result result = {checkpoint, 0, {}, 0, {}};
  result.step = model_->load(checkpoint);
  const auto start = std::chrono::steady_clock::now();
  train::Trainer::EvaluationCalls calls;
  if (predictions != nullptr) {
    calls.logits = [&](std::int64_t first, CView logits, CView labels) {
      predictions->take(first, logits, labels);
    };
  }
  result.evaluation = model_->trainer().evaluate(*data_.validation_samples, count_, world_, calls);
  result.seconds = slowest_seconds_since(world_, start);
  result.footprint = train::footprint(world_, model_->trainer());
  if (result.evaluation.weights == 0) {
    throw Error(ExitCode::data, description() +
                                    ": no evaluated token counts as a target; see "
                                    "data.ignore_token, data.loss_mask and data.token_weights")
        .on_all_ranks();
  }
  return result;
}

std::vector<std::string> Evaluator::files() const {
  std::vector<std::string> paths;
  for (const io::TokenFileSummary& file : data_.validation->files()) paths.push_back(file.path);
  if (paths.empty()) paths.emplace_back("synthetic");
  return paths;
}

void Evaluator::open_data() {
  const std::int64_t ids = tokenizer_ ? tokenizer_->vocabulary() : 0;
  data_ = train::open_data(config_, io::DataPart::validation, ids);
  if (tokenizer_) train::require_same_vocabulary(data_, *tokenizer_, config_);
  const bool generated = description().starts_with("synthetic");
  const auto* tokens = dynamic_cast<const io::TokenSource*>(data_.validation.get());
  if (generated && tokens != nullptr && config_.train.validate_batches == 0) {
    throw Error(ExitCode::usage, "eval of synthetic tokens has no end: set train.validate_batches");
  }
}

/// Without a stride the samples that train validates on; with one the same targets, and the rest
/// that makes no whole sample.
void Evaluator::make_samples(std::int64_t stride) {
  const Dim T = config_.model.context;
  const std::int64_t available = data_.validation_samples->size();
  train::Config counted = config_;
  counted.train.global_batch = validation_batch_;
  count_ = train::validation_samples(counted, available);
  if (stride == 0) {
    const std::string left_out = train::left_out_files(*data_.validation, T);
    if (!left_out.empty() && world_.rank() == 0) log::warn("data.validation: " + left_out);
    return;
  }
  const auto* tokens = dynamic_cast<const io::TokenSource*>(data_.validation.get());
  if (tokens == nullptr)
    throw Error(ExitCode::usage, "--stride is for text: images do not overlap");
  const std::int64_t targets =
      count_ < available ? count_ * T : io::TokenSamples::targets_in(*tokens);
  data_.validation_samples = std::make_unique<io::TokenSamples>(
      io::TokenSamples::strided(*tokens, T, stride, targets, config_.data.target_rules()));
  count_ = data_.validation_samples->size();
}

}  // namespace hyperslab::eval
