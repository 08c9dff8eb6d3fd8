// SPDX-License-Identifier: Apache-2.0
// Files and folders with the real errno in every error; private to io. Every call that changes the
// disk is a fault point, so that tests can make the n-th one fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io::storage {

// Names of the fault points; their subject is the path.
inline constexpr const char* kCreate = "file.create";
inline constexpr const char* kReserve = "file.reserve";
inline constexpr const char* kResize = "file.resize";
inline constexpr const char* kWrite = "file.write";
inline constexpr const char* kSync = "file.sync";
inline constexpr const char* kRename = "file.rename";
inline constexpr const char* kMakeFolder = "folder.make";
inline constexpr const char* kSyncFolder = "folder.sync";
inline constexpr const char* kRemove = "tree.remove";

/// A call that the system refused: Error(storage) "<path>: <what>: <errno text>".
class CallError : public Error {
 public:
  CallError(const std::string& path, const char* what, int error_number);
  [[nodiscard]] int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/// An open file. Functions throw CallError.
class File {
 public:
  /// A new or emptied file to write and read; never the target of a link, which someone else may
  /// have made under a name that can be guessed.
  [[nodiscard]] static File create(const std::string& path);
  /// Read-only. Throws Error(storage) at once for a pipe or a device, without waiting for it.
  [[nodiscard]] static File open(const std::string& path);
  /// To write and read; its contents stay.
  [[nodiscard]] static File open_or_create(const std::string& path);
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  void set_size(std::uint64_t bytes);
  /// Fails now if the disk or a limit does not allow a file of this many bytes.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Lets the system bring the bytes written there to the disk from now on, and does not wait:
  /// sync() has less to do then, and reports errors.
  void start_sync(std::uint64_t offset, std::size_t bytes) const;
  /// Returns how many bytes there were before the end of the file.
  [[nodiscard]] std::size_t read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  [[nodiscard]] std::uint64_t size() const;
  /// True if it, or the folder around it, was removed since it was opened.
  [[nodiscard]] bool is_removed() const;
  void sync();
  void close();  ///< if the result matters; the destructor closes silently

 private:
  File(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
};

/// Makes the folder and its parents.
void make_folder(const std::string& path);
/// Puts the folder's entries on the disk, as far as the file system and the folder's permissions
/// allow it.
void sync_folder(const std::string& path);
/// The folder that holds `path`; "." for a plain name.
[[nodiscard]] std::string parent_of(const std::string& path);
void rename(const std::string& from, const std::string& to);
/// Swaps two folders in one step; false if the file system cannot.
[[nodiscard]] bool exchange(const std::string& a, const std::string& b);
/// Removes a file or a folder with all its content, if it exists.
void remove_tree(const std::string& path);

/// A whole file; fails if it has more than `most` bytes.
[[nodiscard]] std::string read_text(const std::string& path,
                                    std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
/// Creates or empties the file, writes and syncs it.
void write_text(const std::string& path, const std::string& text);

/// Bytes that are free for us on the file system of `path`; the largest number if it does not say.
[[nodiscard]] std::uint64_t free_bytes(const std::string& path);

}  // namespace hyperslab::io::storage
