// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>

namespace hyperslab::io {

/// Throws Error(storage) "cannot write 'PATH': TEXT OF ERRNO; ...".
[[noreturn]] void fail_write(const std::string& path, int error_number,
                             std::source_location where = std::source_location::current());

/// A new file under a temporary name beside `path`, which commit() renames to `path`. Without a
/// commit the destructor removes it, so that `path` is either untouched or complete. All functions
/// throw Error(storage).
class AtomicFile {
 public:
  /// `suffix` parts several temporary files of one path.
  explicit AtomicFile(std::string path, const std::string& suffix = "tmp");
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void append(std::span<const std::byte> bytes);
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Fails now where storage or a limit does not allow a file of this many bytes.
  void reserve(std::int64_t bytes);
  /// Reads what was written; fewer bytes at the end of the file.
  std::size_t read_at(std::int64_t offset, std::span<std::byte> out) const;
  /// Syncs, closes, renames and syncs the folder.
  void commit();
  [[nodiscard]] const std::string& temporary() const { return temporary_; }

 private:
  std::string path_;
  std::string temporary_;
  std::int64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace hyperslab::io
