// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "hyperslab/io/tokenizer.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::io {

/// A text file read from its beginning to its end.
class TextFile {
 public:
  /// `-`: standard input. Throws Error(data) if `path` is not a readable file.
  explicit TextFile(std::string path);
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  TextFile(TextFile&&) = delete;
  TextFile& operator=(TextFile&&) = delete;
  /// Appends to `buffer` up to `bytes` in all; true if the file has ended. Throws Error(data)
  /// if reading fails, if the file is empty, and at its end if it has changed since it was
  /// opened.
  bool fill(std::string& buffer, std::size_t bytes);

 private:
  void check_end() const;

  std::string path_;
  int fd_ = -1;
  bool is_regular_ = false;  ///< else a pipe or device, whose size says nothing
  std::int64_t size_ = 0;    ///< when it was opened
  timespec changed_{};       ///< last change before it was opened
  std::int64_t done_ = 0;    ///< bytes
};

/// The inputs but empty files (0 bytes), which are named in a warning; all of them if there are no
/// others.
[[nodiscard]] std::vector<std::string> without_empty_files(std::span<const std::string> inputs);

/// Cuts a text file into chunks of at most a few MiB and into documents, in bounded memory. A chunk
/// ends with a document or, in longer documents, where `cut_of` says that the vocabulary sees no
/// difference; only text without such a cut in 4 MiB is cut between two UTF-8
/// sequences.
class DocumentReader {
 public:
  /// Throws Error(data) if `path` is not a readable file.
  explicit DocumentReader(const std::string& path, DocumentSeparator separator = {},
                          LastCut cut_of = last_cut);

  struct Chunk {
    std::string_view text;  ///< valid until the next call
    bool ends_document = false;
    bool ends_file = false;
  };
  /// The next chunk; not to be called after one that ends the file.
  Chunk next();

 private:
  /// The end of a document and the begin of the next, in the buffer.
  struct Separator {
    std::size_t begin = std::string::npos;  ///< npos: not in the buffer
    std::size_t end = 0;
  };
  void fill();
  void skip_empty_lines();
  [[nodiscard]] Separator find_marker_line() const;
  [[nodiscard]] Separator find_empty_line() const;
  [[nodiscard]] Separator find_separator() const;
  [[nodiscard]] std::size_t safe_bytes() const;
  [[nodiscard]] std::size_t cut(std::string_view text) const;
  Chunk take(std::size_t text_bytes, std::size_t all_bytes, bool ends_document);

  TextFile file_;
  DocumentSeparator separator_;
  LastCut cut_of_;
  std::string buffer_;
  std::size_t begin_ = 0;        ///< first byte that was not yet given out
  bool line_begins_ = true;      ///< at begin_
  bool at_end_ = false;          ///< the buffer holds the rest of the file
  bool document_begins_ = true;  ///< at begin_
};

}  // namespace hyperslab::io
