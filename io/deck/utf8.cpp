// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

namespace hyperslab::deck {
namespace {

bool in(unsigned char byte, unsigned low, unsigned high) { return byte >= low && byte <= high; }

/// Number of bytes that a leading byte announces; 0 if it cannot lead.
int announced_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (in(lead, 0xC2, 0xDF)) return 2;
  if (in(lead, 0xE0, 0xEF)) return 3;
  return in(lead, 0xF0, 0xF4) ? 4 : 0;
}

/// Overlong forms, surrogates and code points above U+10FFFF show in the second byte.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return in(second, low, high);
}

}  // namespace

int utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](int i) {
    return static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
  };
  const int length = announced_length(byte(0));
  if (length == 0 || static_cast<std::size_t>(length) > text.size()) return 0;
  if (length > 1 && !second_byte_fits(byte(0), byte(1))) return 0;
  for (int i = 2; i < length; ++i) {
    if (!in(byte(i), 0x80, 0xBF)) return 0;
  }
  return length;
}

std::optional<std::size_t> first_bad_byte(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control =
        (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    const int length = control ? 0 : utf8_length(text.substr(i));
    if (length == 0) return i;
    i += static_cast<std::size_t>(length);
  }
  return std::nullopt;
}

}  // namespace hyperslab::deck
