// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/added_tokens.hpp"

namespace hyperslab::io {

/// Tokens and merges, which every vocabulary of a BPE has.
struct MergeVocabulary {
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t result;
  };
  std::vector<std::string> tokens;    ///< by id: bytes, or of a BPE on characters their text
  std::vector<Merge> merges;          ///< the first has the highest priority
  bool whole_pieces = false;          ///< a piece that is a token is not merged
  std::vector<std::int32_t> special;  ///< tokens marked as no text
  TextEnds ends;
  TextTemplate text_template;
  NamedTokens named;
  std::vector<AddedToken> added;  ///< found in text before it is split

  /// By id, whether it is no text (Tokenizer::is_special()).
  [[nodiscard]] std::vector<bool> special_marks() const;
  /// Tokenizer::special_token().
  [[nodiscard]] std::optional<SpecialToken> special_token(std::string_view name) const;
};

/// A byte-level BPE vocabulary as read from files.
struct BpeVocabulary : MergeVocabulary {
  std::array<std::int32_t, 256> byte_ids{};  ///< id of each single byte
  std::string pattern;                       ///< pattern of pieces; merges stay within a piece
  std::string pattern_source;                ///< file and key that name it
  bool in_nfc = false;                       ///< text is brought to Unicode's form C first
};

}  // namespace hyperslab::io
