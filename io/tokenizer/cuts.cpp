// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/cuts.hpp"

#include <algorithm>

namespace hyperslab::io {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_visible(char c) { return c > ' ' && c < 127; }
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// True if the three bytes from `at` on may hold a Unicode space (U+0085, U+00A0, U+1680, U+2000 to
/// U+205F, U+3000); some other characters count as well.
bool may_be_space(std::string_view text, std::size_t at) {
  const std::string_view lead = text.substr(at, 2);
  return lead == "\xC2\x85" || lead == "\xC2\xA0" || lead == "\xE1\x9A" || lead == "\xE2\x80" ||
         lead == "\xE2\x81" || lead == "\xE3\x80";
}

bool ends_in_space(std::string_view text) {
  if (text.empty() || is_ascii_space(text.back())) return true;
  if ((text.back() & 0x80) == 0) return false;
  return may_be_space(text, text.size() - std::min<std::size_t>(text.size(), 2)) ||
         may_be_space(text, text.size() - std::min<std::size_t>(text.size(), 3));
}

bool is_after_line(std::string_view text, std::size_t i) {
  if (text[i - 1] != '\n') return false;
  // Two bytes tell a space from another character: if `text` ends too early nothing is known.
  const bool begins =
      is_letter(text[i]) || is_digit(text[i]) || ((text[i] & 0xC0) == 0xC0 && i + 1 < text.size());
  return begins && !may_be_space(text, i) && !ends_in_space(text.substr(0, i - 1));
}

bool is_between_words(std::string_view text, std::size_t i) {
  return text[i] == ' ' && is_visible(text[i - 1]) && i + 1 < text.size() &&
         is_visible(text[i + 1]);
}

}  // namespace

std::size_t last_cut(std::string_view text, std::size_t from) {
  return last_cut_where(text, from, [](std::string_view, std::size_t) { return true; });
}

std::size_t last_cut_where(std::string_view text, std::size_t from, const MayCut& may_cut) {
  for (const auto parts_pieces : {is_after_line, is_between_words}) {
    for (std::size_t i = text.size(); i-- > from;) {
      if (parts_pieces(text, i) && may_cut(text, i)) return i;
    }
  }
  return std::string_view::npos;
}

std::vector<std::string_view> cut_into_parts(std::string_view text, std::size_t bytes,
                                             const LastCut& cut_of) {
  std::vector<std::string_view> parts;
  std::size_t width = bytes;
  while (text.size() > width) {
    const std::size_t cut = cut_of(text.substr(0, width), std::max<std::size_t>(width / 2, 2));
    if (cut == std::string_view::npos) {
      width *= 2;
      continue;
    }
    parts.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
    width = bytes;
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

}  // namespace hyperslab::io
