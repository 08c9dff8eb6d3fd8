// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

/// The first byte of U+0300. All code points below it are in form C, whatever stands around them.
constexpr unsigned char kFirstLead = 0xCC;

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

/// Bytes of UTF-8 that `text` begins with.
std::size_t valid_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t code = 0;
    const std::string_view rest = text.substr(at);
    const auto bytes =
        utf8proc_iterate(bytes_of(rest), static_cast<utf8proc_ssize_t>(rest.size()), &code);
    if (bytes <= 0) break;
    at += static_cast<std::size_t>(bytes);
  }
  return at;
}

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

/// Code points that reorder or compose by Unicode 10 or later. The package tokenizers normalizes by
/// an older Unicode, in which they stand for themselves and nothing moves across them.
constexpr auto kNewer = std::to_array<Range>({
    // clang-format off
    {0x5C8, 0x5C9}, {0x7FD, 0x7FD}, {0x897, 0x89F}, {0x8CA, 0x8D3}, {0x9FE, 0x9FE},
    {0xC3C, 0xC3C}, {0xD3B, 0xD3C}, {0xEBA, 0xEBA}, {0x1715, 0x1715}, {0x1ABF, 0x1AF0},
    {0x1DF6, 0x1DFA}, {0xA82C, 0xA82C}, {0x105C9, 0x105C9}, {0x105D2, 0x105D2},
    {0x105DA, 0x105DA}, {0x105E4, 0x105E4}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113C8}, {0x113CE, 0x113D0},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11935, 0x11935}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x1611E, 0x1611E}, {0x16121, 0x16129},
    {0x1612F, 0x1612F}, {0x16D63, 0x16D63}, {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1},
    {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F},
    {0x1D280, 0x1D281}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3},
    {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}
    // clang-format on
});

bool is_newer(std::uint32_t code) {
  const auto* const range = std::ranges::lower_bound(kNewer, code, {}, &Range::last);
  return range != kNewer.end() && range->first <= code;
}

/// The canonical decomposition of `text`, not in order yet.
std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  constexpr std::size_t kLongest = 8;  // code points of one character; utf8proc documents 4
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  int boundary = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character next = character_at(text, at);
    const std::size_t begin = codes.size();
    codes.resize(begin + kLongest);
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code),
                                               codes.data() + begin, kLongest, kOptions, &boundary);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(kLongest)) std::abort();
    codes.resize(begin + static_cast<std::size_t>(count));
    at += next.bytes;
  }
  return codes;
}

/// Orders each run of marks by their combining classes, in n log n: utf8proc's own order takes time
/// with the square of a run's length.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto rank = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t code) { return rank(code) != 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), is_mark);
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    std::stable_sort(begin, end, [&](auto a, auto b) { return rank(a) < rank(b); });
    begin = end;
  }
}

void append_composed(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> codes = decomposed(text);
  order_marks(codes);
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto length = utf8proc_encode_char(codes[static_cast<std::size_t>(i)], bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
  }
}

/// NFC of valid UTF-8 with newer code points in it.
void append_in_nfc(std::string_view text, std::string& out) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character next = character_at(text, at);
    if (is_newer(next.code)) {
      append_composed(text.substr(begin, at - begin), out);
      out += text.substr(at, next.bytes);
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  append_composed(text.substr(begin), out);
}

}  // namespace

std::string_view in_nfc(std::string_view text, std::string& copy) {
  const auto may_change = [](char byte) { return static_cast<unsigned char>(byte) >= kFirstLead; };
  if (std::ranges::none_of(text, may_change)) return text;
  copy.clear();
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t valid = valid_bytes(rest);
    append_in_nfc(rest.substr(0, valid), copy);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    copy.push_back(rest.front());
    rest.remove_prefix(1);
  }
  return copy;
}

}  // namespace hyperslab::io
