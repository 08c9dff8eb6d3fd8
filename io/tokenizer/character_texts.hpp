// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "tokenizer/character_vocabulary.hpp"

namespace hyperslab::io {

/// Texts of ids, by the decoder of a vocabulary.
class CharacterTexts {
 public:
  /// `vocabulary` must outlive this.
  explicit CharacterTexts(const CharacterVocabulary& vocabulary);

  /// Bytes of an id of the vocabulary inside a text.
  [[nodiscard]] std::string inside(std::int32_t id) const;
  /// Bytes of an id of the vocabulary at the beginning of a text.
  [[nodiscard]] std::string first(std::int32_t id) const;

 private:
  [[nodiscard]] const std::string& name(std::int32_t id) const;

  const CharacterVocabulary& vocabulary_;
  std::unordered_map<std::int32_t, std::string> renamed_;  ///< as they stand in normalized text
};

}  // namespace hyperslab::io
