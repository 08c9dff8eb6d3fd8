// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "tokenizer/character_alphabet.hpp"
#include "tokenizer/character_pairs.hpp"
#include "tokenizer/character_vocabulary.hpp"

namespace hyperslab::io {

/// Places at which the vocabulary proves that a cut changes no ids of a text. No token that merging
/// gives has the two characters there side by side, so no merge reaches over the place.
class CharacterCuts {
 public:
  /// Both must outlive this.
  CharacterCuts(const CharacterVocabulary& vocabulary, const CharacterAlphabet& alphabet);

  /// True if a token may reach over the place between two characters of a word, or symbols there
  /// depend on both.
  [[nodiscard]] bool may_merge(std::uint32_t left, std::uint32_t right) const {
    return merged_.contains(left, right) || !merges_characters_ || !alphabet_.is_sure(left) ||
           !alphabet_.is_sure(right);
  }
  /// Tokenizer::last_cut(), of text before normalization.
  [[nodiscard]] std::size_t last_cut(std::string_view text, std::size_t from) const;

 private:
  void learn_added_tokens();
  void learn_merges();
  [[nodiscard]] bool begins_piece_after(std::uint32_t left) const {
    return prefixes_pieces_ && ends_.contains(left);
  }
  [[nodiscard]] bool may_cut(std::uint32_t left, std::uint32_t right) const;

  const CharacterVocabulary& vocabulary_;
  const CharacterAlphabet& alphabet_;
  bool merges_characters_ = true;  ///< alone: no merge has a byte's token or the unknown one
  bool may_cut_words_ = true;      ///< at all
  std::size_t margin_ = 0;   ///< bytes that a part of a word must have, so that it is no token
  CharacterPairs merged_;    ///< side by side in a token that merging gives
  CharacterPairs in_added_;  ///< in an added token as it stands in text
  CharacterPairs in_normal_added_;          ///< and in normalized text
  std::unordered_set<std::uint32_t> ends_;  ///< last characters of added tokens
  bool prefixes_pieces_ = false;            ///< also those after added tokens
  bool any_takes_before_ = false;
  bool any_takes_after_ = false;
};

}  // namespace hyperslab::io
