// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/document_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kMarker = "<|endoftext|>";
constexpr std::size_t kBufferBytes = 4 << 20;

[[noreturn]] void fail_input(const std::string& path, const std::string& expected,
                             const std::string& found, const std::string& remedy) {
  throw Error(ExitCode::data, fmt::format("text file '{}': expected {}, found: {}; {}", path,
                                          expected, found, remedy));
}

[[noreturn]] void fail_open(const std::string& path, const std::string& found) {
  fail_input(path, "a readable file", found, "correct --input");
}

}  // namespace

TextFile::TextFile(std::string path) : path_(std::move(path)) {
  const std::string path_to_open = path_ == "-" ? "/dev/stdin" : path_;
  struct stat status {};
  if (::stat(path_to_open.c_str(), &status) != 0) fail_open(path_, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail_open(path_, "a directory");
  fd_ = ::open(path_to_open.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail_open(path_, std::strerror(errno));
  is_regular_ = S_ISREG(status.st_mode);
  size_ = status.st_size;
  changed_ = status.st_mtim;
}

TextFile::~TextFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool TextFile::fill(std::string& buffer, std::size_t bytes) {
  const std::size_t kept = buffer.size();
  if (kept >= bytes) return false;
  buffer.resize(bytes);
  std::size_t filled = kept;
  while (filled < bytes) {
    const ssize_t got = ::read(fd_, buffer.data() + filled, bytes - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      fail_input(path_, "a readable file", fmt::format("byte {}: {}", done_, std::strerror(errno)),
                 "check the storage");
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
    done_ += got;
  }
  buffer.resize(filled);
  if (filled == bytes) return false;
  check_end();
  return true;
}

void TextFile::check_end() const {
  if (done_ == 0) fail_input(path_, "text", "an empty file (0 bytes)", "write or copy it again");
  struct stat status {};
  if (!is_regular_ || ::fstat(fd_, &status) != 0) return;
  const bool same = done_ == size_ && status.st_size == size_ &&
                    status.st_mtim.tv_sec == changed_.tv_sec &&
                    status.st_mtim.tv_nsec == changed_.tv_nsec;
  if (same) return;
  fail_input(path_, fmt::format("a file that stays as it is while it is read ({} bytes)", size_),
             fmt::format("a change before byte {}, {} bytes now", done_, status.st_size),
             "run this again when it is complete");
}

std::vector<std::string> without_empty_files(std::span<const std::string> inputs) {
  std::vector<std::string> kept;
  std::vector<std::string> empty;
  for (const std::string& path : inputs) {
    struct stat status {};
    const bool is_empty =
        ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0;
    (is_empty ? empty : kept).push_back(path);
  }
  if (kept.empty()) return {inputs.begin(), inputs.end()};
  for (const std::string& path : empty) {
    log::warn(fmt::format("text file '{}' is empty (0 bytes) and is left out", path));
  }
  return kept;
}

DocumentReader::DocumentReader(const std::string& path, DocumentSeparator separator, LastCut cut_of)
    : file_(path), separator_(std::move(separator)), cut_of_(std::move(cut_of)) {}

void DocumentReader::fill() {
  if (at_end_ || buffer_.size() - begin_ >= kBufferBytes) return;
  buffer_.erase(0, begin_);
  begin_ = 0;
  at_end_ = file_.fill(buffer_, 2 * kBufferBytes);
}

/// The next line that is only the marker, with its line break.
DocumentReader::Separator DocumentReader::find_marker_line() const {
  for (std::size_t at = buffer_.find(kMarker, begin_); at != buffer_.npos;
       at = buffer_.find(kMarker, at + 1)) {
    const bool begins = at == begin_ ? line_begins_ : buffer_[at - 1] == '\n';
    std::size_t end = at + kMarker.size();
    if (end < buffer_.size() && buffer_[end] == '\r') ++end;
    const bool ends = end == buffer_.size() ? at_end_ : buffer_[end] == '\n';
    if (begins && ends) return {at, std::min(end + 1, buffer_.size())};
  }
  return {};
}

/// The next line that is empty, after the line break that the document keeps.
DocumentReader::Separator DocumentReader::find_empty_line() const {
  for (std::size_t at = buffer_.find('\n', begin_); at != buffer_.npos;
       at = buffer_.find('\n', at + 1)) {
    const std::string_view rest = std::string_view(buffer_).substr(at + 1);
    if (rest.starts_with('\n')) return {at + 1, at + 2};
    if (rest.starts_with("\r\n")) return {at + 1, at + 3};
  }
  return {};
}

DocumentReader::Separator DocumentReader::find_separator() const {
  if (separator_.kind == DocumentSeparator::Kind::marker_line) return find_marker_line();
  if (separator_.kind == DocumentSeparator::Kind::blank_lines) return find_empty_line();
  const std::size_t at = buffer_.find(separator_.text, begin_);
  if (at == buffer_.npos) return {};
  return {at, at + separator_.text.size()};
}

/// Bytes from begin_ on in which no separator begins that goes on beyond the buffer.
std::size_t DocumentReader::safe_bytes() const {
  std::size_t longest = kMarker.size() + 2;  // a line break before it, and a carriage return
  if (separator_.kind == DocumentSeparator::Kind::blank_lines) longest = 3;
  if (separator_.kind == DocumentSeparator::Kind::text) longest = separator_.text.size();
  return buffer_.size() - begin_ - longest + 1;
}

/// Offset at which to cut `text`, which goes on in the file.
std::size_t DocumentReader::cut(std::string_view text) const {
  const std::size_t unseen = cut_of_(text, 2);
  if (unseen != text.npos) return unseen;
  std::size_t at = text.size() - 1;
  while (at > 1 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void DocumentReader::skip_empty_lines() {
  while (true) {
    fill();
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    if (!rest.starts_with('\n') && !rest.starts_with("\r\n")) return;
    begin_ += rest.front() == '\n' ? 1 : 2;
  }
}

DocumentReader::Chunk DocumentReader::take(std::size_t text_bytes, std::size_t all_bytes,
                                           bool ends_document) {
  const std::string_view text(buffer_.data() + begin_, text_bytes);
  begin_ += all_bytes;
  line_begins_ = all_bytes == 0 ? line_begins_ : buffer_[begin_ - 1] == '\n';
  document_begins_ = ends_document;
  return {text, ends_document, at_end_ && begin_ == buffer_.size()};
}

DocumentReader::Chunk DocumentReader::next() {
  fill();
  if (document_begins_ && separator_.kind == DocumentSeparator::Kind::blank_lines) {
    skip_empty_lines();
  }
  const Separator found = find_separator();
  if (found.begin != buffer_.npos) return take(found.begin - begin_, found.end - begin_, true);
  const std::size_t rest = buffer_.size() - begin_;
  if (at_end_) return take(rest, rest, false);
  const std::size_t bytes = cut(std::string_view(buffer_).substr(begin_, safe_bytes()));
  return take(bytes, bytes, false);
}

}  // namespace hyperslab::io
