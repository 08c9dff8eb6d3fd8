// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the sequence that `lead` starts, 0 if no sequence starts with it.
std::size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// True if `byte` may stand `index` (1 to 3) bytes after `lead`: the Unicode Standard, table 3-7,
/// which rules out overlong forms, surrogates and everything above U+10FFFF.
bool may_follow(unsigned char lead, std::size_t index, unsigned char byte) {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

/// Bytes from `at` on that belong to one sequence, at most `length`.
std::size_t sequence_bytes(std::string_view text, std::size_t at, std::size_t length) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t available = std::min(length, text.size() - at);
  std::size_t valid = std::min<std::size_t>(length, 1);
  while (valid < available &&
         may_follow(lead, valid, static_cast<unsigned char>(text[at + valid]))) {
    ++valid;
  }
  return valid;
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    if (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const std::size_t length = length_of(static_cast<unsigned char>(text[i]));
    if (length == 0 || sequence_bytes(text, i, length) < length) break;
    i += length;
  }
  return i;
}

Character wide_character_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = length_of(lead);
  if (length < 2 || sequence_bytes(text, at, length) < length) return {kNoCharacter + lead, 1};
  std::uint32_t code = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3FU);
  }
  return {code, length};
}

Character character_before(std::string_view text, std::size_t at) {
  constexpr std::size_t kMostBytes = 4;
  for (std::size_t back = 1; back <= std::min(at, kMostBytes); ++back) {
    const Character found = character_at(text.substr(0, at), at - back);
    if (found.bytes == back && found.code < kNoCharacter) return found;
  }
  return {kNoCharacter + static_cast<unsigned char>(text[at - 1]), 1};
}

bool is_white_space(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

std::size_t bytes_of_first_spaces(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (!is_white_space(next.code)) break;
    at += next.bytes;
  }
  return at;
}

std::size_t begin_of_last_spaces(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0) {
    const Character last = character_before(text, at);
    if (!is_white_space(last.code)) break;
    at -= last.bytes;
  }
  return at;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t i = 0;
  while (i < pending_.size()) {
    const std::size_t length = length_of(static_cast<unsigned char>(pending_[i]));
    const std::size_t valid = sequence_bytes(pending_, i, length);
    if (length > 0 && valid == length) {
      out.append(pending_, i, length);
    } else if (length > 0 && valid == pending_.size() - i) {
      break;  // the rest of the sequence may still come
    } else {
      out += kReplacement;  // one for the longest part that could have begun a sequence
    }
    i += std::max<std::size_t>(valid, 1);
  }
  pending_.erase(0, i);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return out;
}

}  // namespace hyperslab::io
