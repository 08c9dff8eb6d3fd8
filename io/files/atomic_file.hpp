// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "files/storage.hpp"

namespace hyperslab::io {

/// Throws Error(storage) "cannot write 'PATH': TEXT OF ERRNO; ...".
[[noreturn]] void fail_write(const std::string& path, int error_number,
                             std::source_location where = std::source_location::current());

/// "<kind>.<process id>": a suffix that processes which write the same path do not share.
[[nodiscard]] std::string process_suffix(std::string_view kind = "tmp");

/// True if a rename would replace a device, a pipe or a symbolic link.
[[nodiscard]] bool is_written_in_place(const std::string& path);

/// A new file at `<path>.<suffix>`, which commit() renames to `path`: the one way to replace a
/// file. Without a commit the destructor removes it, so that `path` is either untouched or
/// complete. A device or a pipe, and a link to one, is refused. All functions throw Error(storage)
/// that names `path`.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, const std::string& suffix = process_suffix());
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Fails now if storage or a limit does not allow a file of this many bytes.
  void reserve(std::int64_t bytes);
  /// Reads bytes that were written; fewer bytes at the end of the file.
  [[nodiscard]] std::size_t read_at(std::int64_t offset, std::span<std::byte> out) const;
  /// Syncs, closes, renames and syncs the folder.
  void commit();
  [[nodiscard]] const std::string& temporary() const { return temporary_; }

 private:
  std::string path_;
  std::string temporary_;  ///< empty once it has been renamed
  std::int64_t size_ = 0;  ///< bytes appended so far
  storage::File file_;
};

/// Replaces `path` by a file with this text, as AtomicFile does.
void replace_text(const std::string& path, std::string_view text,
                  const std::string& suffix = process_suffix());

}  // namespace hyperslab::io
