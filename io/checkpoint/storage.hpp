// SPDX-License-Identifier: Apache-2.0
// Files and folders with the real errno in every error; private to io. Every call that changes the
// disk passes a hook, so that tests can let the n-th one fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace hyperslab::io::storage {

enum class Call : std::uint8_t { create, truncate, pwrite, fsync, rename, mkdir, remove };

/// Asked before every changing call, from any thread: 0 lets it happen, an errno makes it fail with
/// that, kShortWrite makes a pwrite write about half of what it was asked to.
using Hook = int (*)(Call call, const std::string& path);
inline constexpr int kShortWrite = -1;
/// For tests; null removes it.
void set_hook(Hook hook);

/// An open file. All failures throw Error(storage): "<path>: <what>: <errno text>".
class File {
 public:
  /// A new or emptied file to write and read.
  [[nodiscard]] static File create(const std::string& path);
  /// Read-only. What is no regular file (a pipe, a device) fails at once, without waiting for it.
  [[nodiscard]] static File open(const std::string& path);
  /// To write and read; what is in it stays.
  [[nodiscard]] static File open_or_create(const std::string& path);
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  void set_size(std::uint64_t bytes);
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Returns how many bytes there were before the end of the file.
  [[nodiscard]] std::size_t read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  [[nodiscard]] std::uint64_t size() const;
  /// Whether no name leads to it any more: someone removed it, or the folder around it.
  [[nodiscard]] bool is_removed() const;
  void sync();
  void close();  ///< where the result matters; the destructor closes silently

 private:
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
};

/// Makes the folder and its parents.
void make_folder(const std::string& path);
/// Puts the folder's entries on the disk; file systems that cannot do it for folders are fine.
void sync_folder(const std::string& path);
void rename(const std::string& from, const std::string& to);
/// Swaps two folders in one step; false where the file system cannot.
[[nodiscard]] bool exchange(const std::string& a, const std::string& b);
/// Removes a file or folder with all that is in it; nothing there is fine.
void remove_tree(const std::string& path);

/// A whole file; fails if it has more than `most` bytes.
[[nodiscard]] std::string read_text(const std::string& path,
                                    std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
/// Creates or empties the file, writes and syncs it.
void write_text(const std::string& path, const std::string& text);
/// Writes `<path>.tmp`, syncs it, renames it to `path` and syncs the folder.
void replace_text(const std::string& path, const std::string& text);

/// Bytes that are free for us on the file system of `path`; the largest number where it does not
/// say.
[[nodiscard]] std::uint64_t free_bytes(const std::string& path);

}  // namespace hyperslab::io::storage
