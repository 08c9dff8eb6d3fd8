// SPDX-License-Identifier: Apache-2.0
// The samples and the vocabulary of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/mixture.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/evaluation.hpp"
#include "start.hpp"

namespace hyperslab::run {

class RunData {
 public:
  /// Opens the deck's files, the same on all ranks, and its vocabulary; rank 0 logs how many
  /// epochs the steps are. Collective over the world. Throws Error(data), Error(usage).
  explicit RunData(const Start& start);

  [[nodiscard]] const io::DataSource& train_source() const { return *data_.train; }
  [[nodiscard]] const io::Samples& train_samples() const { return *data_.train_samples; }
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }  ///< the run's last one
  /// Null if the deck names none.
  [[nodiscard]] const io::Samples* validation_samples() const {
    return data_.validation_samples.get();
  }
  [[nodiscard]] std::int64_t validation_count() const;  ///< samples of one validation
  [[nodiscard]] bool has_tokenizer() const { return tokenizer_ != nullptr; }
  /// The files of the vocabulary, for checkpoints; on rank 0.
  [[nodiscard]] const std::vector<io::VocabularyFile>& vocabulary_files() const {
    return vocabulary_files_;
  }
  /// The amount of text in a validation; absent if the vocabulary does not show it. Collective.
  [[nodiscard]] std::optional<train::TextAmount> count_validation_text() const;
  /// Throws Error(data) if a file was changed since it was opened.
  void require_unchanged() const;

 private:
  void open();
  void open_vocabulary();
  void report_padding() const;
  void report_amount() const;
  void report_packing() const;
  void report_left_out_files() const;
  void report_mixture(const io::MixedSamples& mixture) const;
  void warn_of_missing_bytes(const Error& error) const;
  void warn_of_another_end() const;

  const Start& start_;
  train::DeckData data_;
  std::unique_ptr<io::Tokenizer> tokenizer_;  // absent if the deck names none
  std::vector<io::VocabularyFile> vocabulary_files_;
  std::int64_t last_step_ = 0;
};

/// Fed with the result of every step in order: batches without a target train nothing.
class TargetCheck {
 public:
  explicit TargetCheck(const train::Config& config);
  /// `warns`: whether this rank logs. Throws Error(data), the same on all ranks, after too many
  /// steps in a row whose batch has no target.
  void add(const ops::StepResult& result, bool warns);
  /// Images of all these batches that were broken, each as often as it was met; 0 of text.
  [[nodiscard]] std::int64_t broken_images() const { return broken_images_; }

 private:
  std::int64_t images_ = 0;  ///< images of a batch; 0 if it is text
  std::int64_t broken_images_ = 0;
  int without_targets_in_a_row_ = 0;
};

}  // namespace hyperslab::run
