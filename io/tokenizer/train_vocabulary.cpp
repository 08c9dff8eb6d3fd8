// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/document_reader.hpp"
#include "tokenizer/json_lines.hpp"
#include "tokenizer/merge_learner.hpp"
#include "tokenizer/piece_counts.hpp"
#include "tokenizer/write_vocabulary.hpp"

namespace hyperslab::io {
namespace {

/// A special token of one character, or with others than ASCII's, could be written like a token of
/// bytes.
void check_specials(const std::vector<std::string>& specials) {
  for (auto special = specials.begin(); special != specials.end(); ++special) {
    const bool printable = std::ranges::all_of(*special, [](char c) { return c > ' ' && c < 127; });
    if (special->size() < 2 || !printable) {
      throw Error(ExitCode::usage,
                  fmt::format("--special '{}': expected two or more ASCII characters without white "
                              "space, such as <|endoftext|>; choose another text",
                              *special));
    }
    if (std::find(specials.begin(), special, *special) != special) {
      throw Error(ExitCode::usage,
                  fmt::format("--special '{}' is given twice; delete one", *special));
    }
  }
}

}  // namespace

std::int64_t train_vocabulary(const VocabularyTraining& training) {
  check_specials(training.specials);
  const auto fixed = 256 + static_cast<std::int64_t>(training.specials.size());
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  if (training.size < fixed || training.size > kMost) {
    throw Error(
        ExitCode::usage,
        fmt::format("--train-vocab {}: expected {} (256 bytes and {} special tokens) to {}; "
                    "choose a size in between",
                    training.size, fixed, fixed - 256, kMost));
  }
  if (training.inputs.empty()) {
    throw Error(ExitCode::usage,
                "tokenize: expected at least one text file, found none; use --input");
  }
  refuse_other_formats(training.inputs);
  const LearnedMerges learned = learn_merges(
      count_pieces(without_empty_files(training.inputs), training.specials, training.json),
      training.size - fixed);
  write_vocabulary(learned, training.specials, training.output);
  return static_cast<std::int64_t>(learned.tokens.size() + training.specials.size());
}

}  // namespace hyperslab::io
