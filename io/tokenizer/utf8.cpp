// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the sequence that `lead` starts, 0 where no sequence starts with it.
std::size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Whether `byte` may stand at `place` (1 to 3) after `lead`: the Unicode Standard, table 3-7,
/// which rules out overlong forms, surrogates and everything above U+10FFFF.
bool may_follow(unsigned char lead, std::size_t place, unsigned char byte) {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (place == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t i = 0;
  while (i < pending_.size()) {
    const auto lead = static_cast<unsigned char>(pending_[i]);
    const std::size_t length = length_of(lead);
    const std::size_t available = std::min(length, pending_.size() - i);
    std::size_t valid = std::min<std::size_t>(length, 1);
    while (valid < available &&
           may_follow(lead, valid, static_cast<unsigned char>(pending_[i + valid]))) {
      ++valid;
    }
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
