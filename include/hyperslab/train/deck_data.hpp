// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

/// The samples of a deck and the files that they are drawn from: text, or images if the model reads
/// images.
struct DeckData {
  std::unique_ptr<io::DataSource> train;
  std::unique_ptr<io::DataSource> validation;  ///< absent if the deck names none
  std::unique_ptr<io::Samples> train_samples;
  std::unique_ptr<io::Samples> validation_samples;  ///< in file order
};

/// Throws Error(data). io::DataPart::validation leaves out the training's if that saves work.
/// `ids`: of data.vocabulary, which the ids in files must be below; 0: not known.
[[nodiscard]] DeckData open_data(const Config& config, io::DataPart part = io::DataPart::both,
                                 std::int64_t ids = 0);
/// Throws Error(data) if a token file of `data` was made with another vocabulary than `tokenizer`,
/// which data.vocabulary names.
void require_same_vocabulary(const DeckData& data, const io::Tokenizer& tokenizer,
                             const Config& config);
/// Says which files of a source of text are shorter than a sample of T tokens and its last target,
/// and so in none; empty if no file is.
[[nodiscard]] std::string left_out_files(const io::DataSource& source, Dim T);
/// Generated samples of the model's kind of input, whatever the deck names; of T tokens of text.
[[nodiscard]] DeckData generated_data(const Config& config, Dim T);
/// The settings on which the order of samples up to the end of a step depends, in one line, for
/// checkpoints. `train`: the data that they are drawn from.
[[nodiscard]] std::string sample_order(const Config& config, std::int64_t step,
                                       const io::DataSource& train);
/// The keys of the deck that differ in two of these, "data.sampling and run.seed".
[[nodiscard]] std::string differing_order_keys(const std::string& one, const std::string& other);

}  // namespace hyperslab::train
