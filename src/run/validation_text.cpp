// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/setup.hpp"
#include "training_run.hpp"

namespace hyperslab::run {

/// Bits per byte are a help beside the loss: a run goes on without them.
void TrainingRun::warn_of_missing_bytes(const Error& error) const {
  if (error.code() != ExitCode::data) throw error;
  if (is_first() && validation_samples_) {
    log::warn(std::string("validation without bits per byte: ") + error.what());
  }
}

/// One that cannot be read is left out, one of another model is refused.
void TrainingRun::open_vocabulary() {
  const std::string& vocabulary = config_.data.vocabulary;
  if (vocabulary.empty()) return;
  try {
    train::agree(world_, [&] {
      const Pause pause(world_.activity());
      tokenizer_ = io::open_tokenizer(vocabulary);
      if (is_first()) vocabulary_files_ = io::read_vocabulary_files(vocabulary);
    });
  } catch (const Error& error) {
    tokenizer_.reset();
    vocabulary_files_.clear();
    return warn_of_missing_bytes(error);
  }
  train::agree(world_,
               [&] { io::require_fits_model(*tokenizer_, vocabulary, config_.model.vocabulary); });
}

void TrainingRun::count_validation_text() {
  if (!validation_samples_ || !tokenizer_) return;
  try {
    const train::TextAmount text =
        train::count_text(*validation_samples_, validation_count(), *tokenizer_, world_);
    if (text.bytes > 0) validation_text_ = text;
  } catch (const Error& error) {
    warn_of_missing_bytes(error);
  }
}

}  // namespace hyperslab::run
