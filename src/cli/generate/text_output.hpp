// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab::cli {

/// The valid UTF-8 of a text, with U+FFFD in place of bytes that are none.
[[nodiscard]] std::string valid_utf8(const std::string& text);

/// Texts on standard output as they come. On a terminal '?' stands for control characters, which
/// could steer it.
class TextOutput {
 public:
  TextOutput();
  void print(std::string_view text) const;
  /// Throws Error(storage) if what was printed cannot be written.
  static void flush();

 private:
  bool to_terminal_;
};

}  // namespace hyperslab::cli
