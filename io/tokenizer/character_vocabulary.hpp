// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/bpe_vocabulary.hpp"
#include "tokenizer/character_normalizer.hpp"

namespace hyperslab::io {

/// A space becomes another character, which also stands for the space before a text.
struct Metaspace {
  enum class Prefix : std::uint8_t {
    never,
    first,   ///< before the piece that begins the text
    always,  ///< before every piece between added tokens
  };
  std::string replacement;  ///< one character
  Prefix prefix = Prefix::always;
  bool splits = true;  ///< words end before each of them
};

/// Changes of the texts of tokens by the decoder.
struct TokenRules {
  std::string from;  ///< becomes `to`; empty: nothing does
  std::string to;
  bool has_bytes = false;           ///< <0xC3> is a byte
  bool strips_first_space = false;  ///< removes the first space of a whole text
  std::string drops_in_first;       ///< character that goes from the first token; empty: none
};

/// A BPE on characters, as SentencePiece's became in Hugging Face's tokenizer.json: characters that
/// it does not know become their bytes' tokens, else the unknown token.
struct CharacterVocabulary : MergeVocabulary {
  std::array<std::int32_t, 256> byte_ids{};  ///< ids of <0x00> to <0xFF>; -1: none
  std::int32_t unknown = -1;                 ///< -1: such characters are left out
  bool fuses_unknown = false;                ///< a run of them is one token
  std::vector<NormalizerStep> normalizer;
  std::optional<Metaspace> metaspace;
  std::string split_after;  ///< words end after each of these; empty: a piece is one word
  TokenRules rules;

  /// True if a character stands for the space before a text.
  [[nodiscard]] bool puts_prefix() const {
    for (const NormalizerStep& step : normalizer) {
      if (step.from.empty()) return true;
    }
    return metaspace && metaspace->prefix != Metaspace::Prefix::never;
  }
  /// True if pieces are split into words.
  [[nodiscard]] bool splits_words() const {
    return (metaspace && metaspace->splits) || !split_after.empty();
  }
  /// An added token as it stands in the text that is searched for it.
  [[nodiscard]] std::string text_in_search(const AddedToken& token) const {
    std::string copy;
    return token.normalized ? std::string(io::normalized(token.text, normalizer, true, copy))
                            : token.text;
  }
};

}  // namespace hyperslab::io
