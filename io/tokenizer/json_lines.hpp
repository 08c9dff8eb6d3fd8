// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/line_batches.hpp"

namespace hyperslab::io {

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

/// Reads a file of JSON lines from its beginning to its end, as LineBatches does.
class JsonLinesReader {
 public:
  /// Throws Error(data) if `path` is not a readable file. `most`: bytes that a line may have.
  JsonLinesReader(const std::string& path, const JsonLines& format,
                  std::size_t most = kMostJsonLineBytes);
  /// The texts of the next lines, decoded on all threads; false at the end of the file. Throws
  /// Error(data) with file and line for the first line without a text, unless lines are skipped;
  /// at the end if so many were skipped that no text was found.
  bool next(std::vector<std::string>& texts);

 private:
  std::string key_;
  LineBatches batches_;
  std::vector<std::string_view> lines_;
};

}  // namespace hyperslab::io
