// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/document_reader.hpp"

namespace hyperslab::io {

/// Bytes that a line of JSON may have.
inline constexpr std::size_t kMostJsonLineBytes = std::size_t{64} << 20;

/// Handling of lines that cannot be taken.
struct LineRules {
  bool skip_broken = false;  ///< they are left out and counted; else the first is an error
  std::string wanted;        ///< content that a line should have: "a text"
  std::size_t most_bytes = kMostJsonLineBytes;  ///< that a line may have
};

/// Reads the lines of a file from its beginning to its end, in bounded memory: some at once, out of
/// 8 MiB or one longer line. Lines of white space alone are passed over.
class LineBatches {
 public:
  /// Throws Error(data) if `path` is not a readable file.
  LineBatches(const std::string& path, LineRules rules);
  /// The next lines, without their breaks, valid until the next call; false at the end of the file.
  /// Throws Error(data) with file and line for one that is too long, unless lines are skipped; at
  /// the end if so many were skipped that none was taken.
  bool next(std::vector<std::string_view>& lines);
  /// Calls job(i) for lines i of the last next() that are not blank, on all threads.
  static void for_each(const std::vector<std::string_view>& lines,
                       const std::function<void(std::size_t)>& job);
  /// To be called for the lines of the last next() in their order, with the problem of each, empty
  /// if there is none. True if the line counts; false if it is blank or skipped. Throws
  /// Error(data) with file and line for a problem, unless lines are skipped.
  bool take(const std::vector<std::string_view>& lines, std::size_t i, const std::string& problem);

 private:
  [[nodiscard]] std::string_view fill();
  void drop_long_line();
  void complain(std::int64_t line, const std::string& problem);
  void end() const;

  std::string path_;
  LineRules rules_;
  TextFile file_;
  std::string buffer_;
  std::string_view rest_;   ///< whole lines of the buffer that next() has not given
  std::size_t given_ = 0;   ///< bytes of the buffer's whole lines
  bool at_end_ = false;     ///< the buffer holds the rest of the file
  bool is_cut_ = false;     ///< the last line has no line break
  std::int64_t lines_ = 0;  ///< before the last next()
  std::int64_t batch_ = 0;  ///< lines of the last next()
  std::int64_t taken_ = 0;  ///< lines that counted
  std::int64_t skipped_ = 0;
  std::string first_skipped_;  ///< line and problem
};

}  // namespace hyperslab::io
