// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

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

void append_composed(std::string_view text, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* composed = nullptr;
  const auto bytes =
      utf8proc_map(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (bytes < 0) throw std::bad_alloc();  // there is no other reason: the text is valid
  out.append(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(bytes));
}

}  // namespace

std::string_view in_nfc(std::string_view text, std::string& copy) {
  const auto may_change = [](char byte) { return static_cast<unsigned char>(byte) >= kFirstLead; };
  if (std::ranges::none_of(text, may_change)) return text;
  copy.clear();
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t valid = valid_bytes(rest);
    append_composed(rest.substr(0, valid), copy);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    copy.push_back(rest.front());
    rest.remove_prefix(1);
  }
  return copy;
}

}  // namespace hyperslab::io
