// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// A change that a normalizer makes to each piece of text between added tokens: `from` becomes
/// `to` everywhere, or, if `from` is empty, `to` is put in front. Both are single characters.
struct NormalizerStep {
  std::string from;
  std::string to;
};

/// Appends `text` with `to` in place of `from`, which is not empty.
void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::string& out);

/// `text` as the steps leave it, in `copy` if there are any. `with_prefix`: with the text that they
/// put in front.
[[nodiscard]] std::string_view normalized(std::string_view text,
                                          const std::vector<NormalizerStep>& steps,
                                          bool with_prefix, std::string& copy);

/// A character as the steps leave it.
[[nodiscard]] std::uint32_t normalized(std::uint32_t code,
                                       const std::vector<NormalizerStep>& steps);

/// The code point of a text of one character.
[[nodiscard]] std::uint32_t code_of(std::string_view character);

}  // namespace hyperslab::io
