// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/printable.hpp"

#include <algorithm>

namespace hyperslab {

namespace {

/// Bytes of the character at the beginning of `text` that moves a cursor or turns the direction of
/// writing; 0: it is another one.
std::size_t control_bytes(std::string_view text, bool lines) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x20) return lines && (first == '\n' || first == '\t') ? 0 : 1;
  if (first == 0x7F) return 1;
  if (first == 0xC2) return byte(1) >= 0x80 && byte(1) < 0xA0 ? 2 : 0;  // C1 in UTF-8
  if (first == 0xD8 && byte(1) == 0x9C) return 2;                       // U+061C
  if (first != 0xE2) return 0;
  const unsigned low = byte(2);
  const bool is_mark = byte(1) == 0x80 && (low == 0x8E || low == 0x8F);   // U+200E, U+200F
  const bool is_line = byte(1) == 0x80 && low >= 0xA8 && low <= 0xAE;     // U+2028 to U+202E
  const bool is_isolate = byte(1) == 0x81 && low >= 0xA6 && low <= 0xA9;  // U+2066 to U+2069
  return is_mark || is_line || is_isolate ? 3 : 0;
}

}  // namespace

std::string printable(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t control = control_bytes(text, lines);
    out += control > 0 ? '?' : text.front();
    text.remove_prefix(std::max<std::size_t>(control, 1));
  }
  return out;
}

}  // namespace hyperslab
