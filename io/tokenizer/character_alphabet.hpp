// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/character_vocabulary.hpp"
#include "tokenizer/piece_encoder.hpp"

namespace hyperslab::io {

/// A symbol for each character: its token, else its bytes' tokens, else the unknown token.
class CharacterAlphabet final : public Alphabet {
 public:
  explicit CharacterAlphabet(const CharacterVocabulary& vocabulary);

  void append(std::string_view piece, std::vector<std::int32_t>& ids) const override;
  /// True if a character, or a byte that belongs to none, has symbols of its own, which do not
  /// depend on the text beside it.
  [[nodiscard]] bool is_sure(std::uint32_t code) const {
    return has_all_bytes_ || id_of(code) >= 0;
  }

 private:
  [[nodiscard]] std::int32_t id_of(std::uint32_t code) const;
  [[nodiscard]] bool append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids) const;

  std::array<std::int32_t, 128> ascii_{};  ///< ids, or -1
  std::unordered_map<std::uint32_t, std::int32_t> wide_;
  std::array<std::int32_t, 256> bytes_;
  bool has_all_bytes_;
  std::int32_t unknown_;
  bool fuses_unknown_;
};

}  // namespace hyperslab::io
