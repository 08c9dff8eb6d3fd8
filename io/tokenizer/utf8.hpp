// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hyperslab::io {

/// Bytes at the beginning of `text` that are valid UTF-8.
[[nodiscard]] std::size_t valid_utf8_prefix(std::string_view text);

/// A character, or a byte that belongs to none.
struct Character {
  std::uint32_t code;  ///< from kNoCharacter on: that and the byte
  std::size_t bytes;   ///< in UTF-8
};
inline constexpr std::uint32_t kNoCharacter = 0x110000;

/// The character at an offset below text.size(), not of ASCII.
[[nodiscard]] Character wide_character_at(std::string_view text, std::size_t at);

/// The character at an offset below text.size().
[[nodiscard]] inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  return byte < 0x80 ? Character{byte, 1} : wide_character_at(text, at);
}

/// The character that ends at an offset of 1 or more.
[[nodiscard]] Character character_before(std::string_view text, std::size_t at);

/// White_Space of the Unicode Character Database.
[[nodiscard]] bool is_white_space(std::uint32_t code);
[[nodiscard]] std::size_t bytes_of_first_spaces(std::string_view text);
/// Offset at which the white space at the end of `text` begins; its size if there is none.
[[nodiscard]] std::size_t begin_of_last_spaces(std::string_view text);

}  // namespace hyperslab::io
