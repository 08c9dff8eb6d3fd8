// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_normalizer.hpp"

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {

void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::string& out) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  out += text;
}

std::string_view normalized(std::string_view text, const std::vector<NormalizerStep>& steps,
                            bool with_prefix, std::string& copy) {
  if (steps.empty() || text.empty()) return text;
  copy.assign(text);
  for (const NormalizerStep& step : steps) {
    if (step.from.empty()) {
      if (with_prefix) copy.insert(0, step.to);
      continue;
    }
    std::string replaced;
    replaced.reserve(copy.size() + copy.size() / 2);
    append_replaced(copy, step.from, step.to, replaced);
    copy.swap(replaced);
  }
  return copy;
}

std::uint32_t code_of(std::string_view character) { return character_at(character, 0).code; }

std::uint32_t normalized(std::uint32_t code, const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& step : steps) {
    if (!step.from.empty() && code == code_of(step.from)) code = code_of(step.to);
  }
  return code;
}

}  // namespace hyperslab::io
