// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>

#include "dataset/bus_errors.hpp"

namespace hyperslab::io {

/// Words for a file of data in messages.
struct FileKind {
  const char* file;     ///< "token file"
  const char* content;  ///< "tokens"
  const char* pattern;  ///< pattern of the names: "*.bin"
};
inline constexpr FileKind kTokenFile{"token file", "tokens", "*.bin"};
inline constexpr FileKind kImageFile{"image file", "images", "*.tar"};

/// Throws Error(data): "token file 'PATH': expected W, found F; REMEDY".
[[noreturn]] void fail_file(const std::string& path, const std::string& expected,
                            const std::string& found, const std::string& remedy,
                            const FileKind& kind = kTokenFile,
                            std::source_location where = std::source_location::current());

/// Size and time of a file, which show a change without reading it.
struct FileStamp {
  std::int64_t bytes = 0;
  std::int64_t seconds = 0;  ///< time of the last modification
  std::int64_t nanoseconds = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Stamp of the file at `path` now; nothing if it cannot be looked at.
[[nodiscard]] std::optional<FileStamp> stamp_of(const std::string& path);

/// Throws Error(data) if the file at `path` is not the one of this stamp; a file that is gone by
/// now does not count.
void require_stamp(const std::string& path, const FileStamp& opened,
                   const FileKind& kind = kTokenFile);

/// A regular, non-empty file mapped for reading as long as this lives. If it is shortened in
/// that time, reading it ends the process; see BusErrorLine.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error(data) if `path` is missing, not a regular file, not readable or empty.
  explicit MappedFile(const std::string& path, const FileKind& kind = kTokenFile);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(size_); }

  /// When it was opened.
  [[nodiscard]] const FileStamp& stamp() const { return stamp_; }

  enum class Access : std::uint8_t { sequential, random };
  /// Advises the kernel whether to read ahead.
  void expect(Access access) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  FileStamp stamp_;
  std::unique_ptr<const BusErrorLine> bus_error_line_;
};

}  // namespace hyperslab::io
