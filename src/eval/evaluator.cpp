// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/evaluator.hpp"

#include <chrono>
#include <utility>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/resolution.hpp"
#include "hyperslab/train/same_data.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::eval {
namespace {

/// Collective.
double slowest_seconds_since(comm::World& world, std::chrono::steady_clock::time_point start) {
  const auto mine = std::chrono::steady_clock::now() - start;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(mine);
  return 1e-9 * static_cast<double>(world.max(nanoseconds.count()));
}

}  // namespace

Evaluator::Evaluator(comm::World& world, EvalDeck deck, std::int64_t stride)
    : world_(world),
      config_(std::move(deck.config)),
      validation_batch_(deck.validation_batch),
      is_legal_(std::move(deck.is_legal)) {
  comm::agree(world_, [&] {
    open_data();
    make_samples(stride);
    if (!config_.data.vocabulary.empty()) {
      tokenizer_ = io::open_tokenizer(config_.data.vocabulary);
      io::require_fits_model(*tokenizer_, config_.data.vocabulary, config_.model.vocabulary);
    }
  });
  train::require_same_data(world_, {{"the evaluated data", data_.validation.get()}});
  const auto* samples = dynamic_cast<const io::TokenSamples*>(data_.validation_samples.get());
  if (tokenizer_ && samples != nullptr) {
    text_ = train::count_text(*samples, count_, *tokenizer_, world_);
  }
  comm::agree(world_,
              [&] { options_ = train::trainer_options(config_, world_.local_rank(), false); });
  options_.activity = &world_.activity();
  mesh_ = train::make_mesh(world_, config_, options_.device);
}

const io::ImageSet* Evaluator::images() const {
  return dynamic_cast<const io::ImageSet*>(data_.validation.get());
}

Result Evaluator::measure(const std::string& checkpoint, Predictions* predictions) {
  Result result = {checkpoint, 0, {}, 0, {}};
  if (!trainer_) make_trainer(checkpoint);
  comm::agree(world_, [&] {
    const Pause pause(world_.activity(), "loading a checkpoint");
    io::CheckpointReader reader(checkpoint);
    (void)train::fit_resolution(reader, config_.model);
    result.step = reader.meta().step;
    train::require_loadable(reader, config_, *trainer_);
    trainer_->load(reader);  // which names every tensor of another shape
    train::require_same_model(reader.meta(), config_.model, reader.folder());
  });
  trainer_->share_values();
  const auto start = std::chrono::steady_clock::now();
  train::Trainer::EvaluationCalls calls;
  if (predictions != nullptr) {
    calls.logits = [&](std::int64_t first, CView logits, CView labels) {
      predictions->take(first, logits, labels);
    };
  }
  result.evaluation = trainer_->evaluate(*data_.validation_samples, count_, world_, calls);
  result.seconds = slowest_seconds_since(world_, start);
  result.footprint = train::footprint(world_, *trainer_);
  if (result.evaluation.tokens == 0) {
    throw Error(ExitCode::data, description() +
                                    ": no evaluated token counts as a target; see "
                                    "data.ignore_token and data.loss_mask")
        .on_all_ranks();
  }
  return result;
}

void Evaluator::make_trainer(const std::string& checkpoint) {
  std::int64_t base_step = 0;
  comm::agree(world_, [&] {
    const plan::Plan plan = plan::make_plan(config_, options_, world_.rank());
    trainer_ = plan::make_trainer(config_, *mesh_, options_, plan.memory, is_legal_);
    trainer_->initialize();
    base_step = io::CheckpointReader(checkpoint).meta().base_step;
  });
  train::load_base(world_, config_, *trainer_, base_step);
}

std::vector<std::string> Evaluator::files() const {
  std::vector<std::string> paths;
  for (const io::TokenFileSummary& file : data_.validation->files()) paths.push_back(file.path);
  if (paths.empty()) paths.emplace_back("synthetic");
  return paths;
}

void Evaluator::open_data() {
  data_ = train::open_data(config_, io::DataPart::validation);
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
  if (stride == 0) return;
  const auto* tokens = dynamic_cast<const io::TokenSource*>(data_.validation.get());
  if (tokens == nullptr)
    throw Error(ExitCode::usage, "--stride is for text: images do not overlap");
  const std::int64_t targets = count_ < available ? count_ * T : tokens->size() - 1;
  data_.validation_samples = std::make_unique<io::TokenSamples>(
      io::TokenSamples::strided(*tokens, T, stride, targets, config_.data.ignore_token));
  count_ = data_.validation_samples->size();
}

}  // namespace hyperslab::eval
