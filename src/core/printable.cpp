// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/printable.hpp"

namespace hyperslab {

std::string printable(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1 in UTF-8
      out += '?';
      ++i;
    } else if ((c < 0x20 && !(lines && (c == '\n' || c == '\t'))) || c == 0x7F) {
      out += '?';
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace hyperslab
