// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace hyperslab::cli {

/// Lines of standard input: of a terminal, a file or a pipe.
class LineInput {
 public:
  struct Line {
    std::string text;          ///< without its end
    bool is_too_long = false;  ///< it has more than kMostBytes, and its text is left out
  };
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  LineInput();
  /// True if a person types the lines.
  [[nodiscard]] bool is_terminal() const { return is_terminal_; }
  /// The next line; nothing at the end of the input, or once `is_over()`, which is asked again and
  /// again while nothing comes. Throws Error(data) if the input cannot be read.
  [[nodiscard]] std::optional<Line> next(const std::function<bool()>& is_over);

 private:
  [[nodiscard]] std::optional<Line> take();
  void read_more();

  bool is_terminal_;
  bool has_ended_ = false;
  bool is_too_long_ = false;  ///< the beginning of the line was dropped
  std::string bytes_;         ///< read, and not taken
};

}  // namespace hyperslab::cli
