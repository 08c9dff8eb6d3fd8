// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/document_reader.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kMarker = "<|endoftext|>";
constexpr std::size_t kBufferBytes = 4 << 20;

[[noreturn]] void fail_input(const std::string& path, const std::string& found) {
  throw Error(ExitCode::data, "text file '" + path + "': wanted a readable file, found: " + found +
                                  "; correct --input");
}

/// Where to cut `text`, of which more follows; the last line stays, as it may become a marker.
std::size_t cut_of(std::string_view text) {
  const std::size_t after_line = last_cut(text, 2);
  if (after_line != text.npos) return after_line;
  std::size_t cut = text.size() - kMarker.size() - 2;
  while (cut > 1 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

}  // namespace

TextFile::TextFile(const std::string& path) : path_(path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_input(path, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail_input(path, "a directory");
  file_.open(path, std::ios::binary);
  if (!file_) fail_input(path, std::strerror(errno));
}

bool TextFile::fill(std::string& buffer, std::size_t bytes) {
  const std::size_t kept = buffer.size();
  if (kept >= bytes) return file_.eof();
  buffer.resize(bytes);
  file_.read(buffer.data() + kept, static_cast<std::streamsize>(bytes - kept));
  if (file_.bad()) fail_input(path_, std::strerror(errno));
  buffer.resize(kept + static_cast<std::size_t>(file_.gcount()));
  return file_.eof();
}

DocumentReader::DocumentReader(const std::string& path) : file_(path) {}

void DocumentReader::fill() {
  if (at_end_ || buffer_.size() - begin_ >= kBufferBytes) return;
  buffer_.erase(0, begin_);
  begin_ = 0;
  at_end_ = file_.fill(buffer_, 2 * kBufferBytes);
}

/// The next line that is only the marker: its place, and `end` behind its line break.
std::size_t DocumentReader::find_marker(std::size_t from, std::size_t& end) const {
  for (std::size_t at = buffer_.find(kMarker, from); at != buffer_.npos;
       at = buffer_.find(kMarker, at + 1)) {
    const bool begins = at == begin_ ? line_begins_ : buffer_[at - 1] == '\n';
    end = at + kMarker.size();
    if (end < buffer_.size() && buffer_[end] == '\r') ++end;
    const bool ends = end == buffer_.size() ? at_end_ : buffer_[end] == '\n';
    if (!begins || !ends) continue;
    if (end < buffer_.size()) ++end;
    return at;
  }
  return buffer_.npos;
}

DocumentReader::Piece DocumentReader::take(std::size_t text_bytes, std::size_t all_bytes,
                                           bool ends_document) {
  const std::string_view text(buffer_.data() + begin_, text_bytes);
  begin_ += all_bytes;
  line_begins_ = all_bytes == 0 ? line_begins_ : buffer_[begin_ - 1] == '\n';
  return {text, ends_document, at_end_ && begin_ == buffer_.size()};
}

DocumentReader::Piece DocumentReader::next() {
  fill();
  std::size_t end = 0;
  const std::size_t marker = find_marker(begin_, end);
  if (marker != buffer_.npos) return take(marker - begin_, end - begin_, true);
  const std::size_t rest = buffer_.size() - begin_;
  if (at_end_) return take(rest, rest, false);
  const std::size_t cut = cut_of(std::string_view(buffer_).substr(begin_));
  return take(cut, cut, false);
}

}  // namespace hyperslab::io
