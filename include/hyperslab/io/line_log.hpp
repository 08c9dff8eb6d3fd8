// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hyperslab::io {

/// A file of JSON objects, a line each, with an integer `step` in all of them. It holds whole lines
/// only: a line that could not be written is removed, waits in memory (up to `most_pending` lines,
/// then the oldest are lost), and is written before the next one. A failure is a warning, once and
/// then at most every ten minutes, and so is a file that someone removed.
class LineLog {
 public:
  /// Cuts off lines of `first_step` and later ones, which will be done again, and torn lines.
  /// Throws Error(storage) if the file cannot be opened or cut.
  LineLog(const std::string& path, std::int64_t first_step, std::size_t most_pending = 100000);
  LineLog(LineLog&&) noexcept;
  LineLog& operator=(LineLog&&) noexcept;
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;
  ~LineLog();  ///< tries once more to write waiting lines; says how many lines are lost

  /// `line` without its end of line.
  void append(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyperslab::io
