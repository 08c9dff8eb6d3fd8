// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::train {

/// The amount of text in the counted targets of some samples.
struct TextAmount {
  double bytes = 0;      ///< bytes of all tokens; special ones, end of text among them, have none
  double words = 0;      ///< runs of other bytes than white space that begin in a counted target
  double line_ends = 0;  ///< line feeds
};

/// Counts samples [0, count). White space is ASCII's six characters; a special token separates
/// words, too. Each rank reads its share; collective over the world, and so are errors: Error(data)
/// of the source, or if a target is no id of the vocabulary.
[[nodiscard]] TextAmount count_text(const io::TokenSamples& samples, std::int64_t count,
                                    const io::Tokenizer& tokenizer, comm::World& world);

/// Loss and accuracy as sums over counted targets: tokens of text, images.
struct Evaluation {
  double loss_sum = 0;  ///< nats
  double tokens = 0;    ///< or images
  double correct = 0;
  double correct5 = 0;   ///< images whose class is among the five likeliest
  bool is_whole = true;  ///< false: it was cut short, and the sums are of a part
  double weights = 0;    ///< weights of counted targets; without data.token_weights their number
  [[nodiscard]] double loss() const { return loss_sum / weights; }
  [[nodiscard]] double perplexity() const;
  [[nodiscard]] double accuracy() const { return correct / tokens; }
  [[nodiscard]] double accuracy5() const { return correct5 / tokens; }
  /// Bits that the model spends on a byte of text.
  [[nodiscard]] double bits_per_byte(const TextAmount& text) const;
  /// As WikiText's leaderboards count: a line end is a word, its <eos>.
  [[nodiscard]] double word_perplexity(const TextAmount& text) const;
};

}  // namespace hyperslab::train
