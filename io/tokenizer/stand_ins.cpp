// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bitset>
#include <cstring>
#include <memory>

#include "tokenizer/unicode_ages.hpp"

namespace hyperslab::io {
namespace {

using Marks = std::bitset<0x110000>;

std::unique_ptr<const Marks> marks_of(std::span<const StandIn> ranges) {
  auto marks = std::make_unique<Marks>();
  for (const StandIn& range : ranges) {
    for (std::uint32_t code = range.first; code <= range.last; ++code) marks->set(code);
  }
  return marks;
}

std::size_t bytes_of(unsigned char lead) { return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

std::uint32_t decode(const char* at, std::size_t bytes) {
  const auto byte = [at](std::size_t i) { return static_cast<unsigned char>(at[i]); };
  std::uint32_t code = byte(0) & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

void encode(std::uint32_t code, char* at, std::size_t bytes) {
  for (std::size_t i = bytes - 1; i > 0; --i, code >>= 6) {
    at[i] = static_cast<char>(0x80U | (code & 0x3FU));
  }
  at[0] = static_cast<char>((0xF00U >> bytes & 0xFFU) | code);
}

std::uint32_t stand_in_of(std::uint32_t code) {
  const auto ranges = stand_ins();
  return std::ranges::lower_bound(ranges, code, {}, &StandIn::last)->code_point;
}

/// Offset of the next byte that is not ASCII, from `at` on; the size of `text` if there is none.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  for (std::uint64_t eight = 0; at + sizeof eight <= text.size(); at += sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & 0x8080808080808080U) != 0) break;
  }
  while (at < text.size() && static_cast<signed char>(text[at]) >= 0) ++at;
  return at;
}

}  // namespace

std::string_view with_stand_ins(std::string_view text, std::string& copy) {
  static const std::unique_ptr<const Marks> marks = marks_of(stand_ins());
  bool copied = false;
  for (std::size_t at = skip_ascii(text, 0); at < text.size(); at = skip_ascii(text, at)) {
    const std::size_t bytes = bytes_of(static_cast<unsigned char>(text[at]));
    const std::uint32_t code = decode(text.data() + at, bytes);
    if (marks->test(code)) {
      if (!copied) copy = text;
      copied = true;
      encode(stand_in_of(code), copy.data() + at, bytes);
    }
    at += bytes;
  }
  return copied ? std::string_view(copy) : text;
}

}  // namespace hyperslab::io
