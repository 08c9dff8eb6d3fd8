// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/document_reader.hpp"

namespace hyperslab::io {

/// Bytes that a line of JSON may have.
inline constexpr std::size_t kMostJsonLineBytes = std::size_t{64} << 20;

/// The text of a line, or why it has none.
struct JsonText {
  std::string text;
  std::string problem;  ///< empty if there is a text
};

/// The text under `key` of the object in `line`. Refused are: no JSON in UTF-8, no object, nesting
/// deeper than kDeepestJson, a key that is missing, stands twice or has another value than a text.
[[nodiscard]] JsonText json_text(std::string_view line, std::string_view key);

/// Warns of a text file whose first line is a JSON object: someone may have forgotten --jsonl.
void warn_of_json(const std::string& path);

/// Throws Error(data) for names of compressed files and of Parquet, which no reader here takes.
void refuse_other_formats(const std::vector<std::string>& inputs);

/// Reads a file of JSON lines from its beginning to its end, in bounded memory: a batch of 8 MiB,
/// or one longer line. Lines of white space alone are passed over.
class JsonLinesReader {
 public:
  /// Throws Error(data) if `path` is not a readable file. `most`: bytes that a line may have.
  JsonLinesReader(const std::string& path, JsonLines format, std::size_t most = kMostJsonLineBytes);
  /// The texts of the next lines, decoded on all threads; false at the end of the file. Throws
  /// Error(data) with file and line for the first line without a text, unless lines are skipped;
  /// at the end if so many were skipped that no text was found.
  bool next(std::vector<std::string>& texts);

 private:
  [[nodiscard]] std::string_view fill();
  void drop_long_line();
  void take(std::string_view text, std::vector<std::string>& texts);
  void decode(const std::vector<std::string_view>& lines, bool is_open,
              std::vector<std::string>& texts);
  void complain(std::int64_t line, const std::string& problem);
  void end() const;

  std::string path_;
  JsonLines json_;
  std::size_t most_;
  TextFile file_;
  std::string buffer_;
  bool at_end_ = false;     ///< the buffer holds the rest of the file
  std::int64_t lines_ = 0;  ///< before the buffer
  std::int64_t found_ = 0;  ///< texts
  std::int64_t skipped_ = 0;
  std::string first_skipped_;  ///< line and problem
};

}  // namespace hyperslab::io
