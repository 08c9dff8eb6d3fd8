// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace hyperslab::io {

/// A text file read from its beginning to its end.
class TextFile {
 public:
  /// Throws Error(data) where `path` is not a readable file.
  explicit TextFile(const std::string& path);
  /// Appends to `buffer` up to `bytes` in all; true where the file has ended.
  bool fill(std::string& buffer, std::size_t bytes);

 private:
  std::string path_;
  std::ifstream file_;
};

/// Cuts a text file into pieces of at most a few MiB and into documents, in bounded memory. A piece
/// ends where a document does or, in longer documents, where last_cut() (cuts.hpp) says that no
/// vocabulary sees a difference; only text without such a place in 4 MiB is cut between two UTF-8
/// sequences.
class DocumentReader {
 public:
  /// Throws Error(data) where `path` is not a readable file.
  explicit DocumentReader(const std::string& path);

  struct Piece {
    std::string_view text;  ///< valid until the next call
    bool ends_document = false;
    bool ends_file = false;
  };
  /// The next piece; not to be called after one that ends the file.
  Piece next();

 private:
  void fill();
  [[nodiscard]] std::size_t find_marker(std::size_t from, std::size_t& end) const;
  Piece take(std::size_t text_bytes, std::size_t all_bytes, bool ends_document);

  TextFile file_;
  std::string buffer_;
  std::size_t begin_ = 0;    ///< of what was not yet given out
  bool line_begins_ = true;  ///< at begin_
  bool at_end_ = false;      ///< the buffer holds the rest of the file
};

}  // namespace hyperslab::io
