// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// A byte-level BPE vocabulary as read from files.
struct BpeVocabulary {
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t result;
  };
  std::vector<std::string> tokens;           ///< bytes by id
  std::array<std::int32_t, 256> byte_ids{};  ///< id of each single byte
  std::vector<Merge> merges;                 ///< the first has the highest priority
  std::string pattern;                       ///< what pieces match; merges stay within a piece
  std::string pattern_source;                ///< file and key that name it
  bool in_nfc = false;                       ///< text is brought to Unicode's form C first
  bool whole_pieces = false;                 ///< a piece that is a token is not merged
  std::vector<std::int32_t> added;           ///< tokens found in text before it is split
  std::vector<std::int32_t> special;         ///< tokens marked as no text
  std::int32_t end_of_text = -1;
  TextTemplate text_template;
};

/// Reads `path`: a folder with tokenizer.json or with vocab.json and merges.txt (or gpt2_vocab.json
/// and gpt2_merges.txt), or one of the .json files; with the tokenizer_config.json of its folder,
/// if there is one. Throws Error(data) that names the file, the
/// line or key, what was expected and found.
[[nodiscard]] BpeVocabulary read_vocabulary(const std::string& path);

}  // namespace hyperslab::io
