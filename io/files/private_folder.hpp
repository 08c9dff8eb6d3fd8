// SPDX-License-Identifier: Apache-2.0
// Folders of this user alone in a directory where others may write too, such as /dev/shm.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace hyperslab::io {

/// A folder is private if it is no link, belongs to this user and has the mode 0700. Then no one
/// else can read, replace or add anything below it.
[[nodiscard]] bool is_private_folder(const std::string& path);

/// Makes the folder with mode 0700, or takes one that is private. Throws Error(storage) that names
/// the entry there instead.
void make_private_folder(const std::string& path);

/// Throws Error(storage) if others may rename or replace files in `directory`: it belongs to
/// neither root nor this user, or others may write there and it is not sticky. A link to a
/// directory counts as that directory.
void require_safe_directory(const std::string& directory);

/// Gives a file that was just made in a private folder the mode 0600. Throws Error(storage).
void make_private_file(const std::string& path);

/// Holds a private folder against other processes by flock, until the object or the process ends.
class FolderLock {
 public:
  /// Nothing if another process holds it. Throws Error(storage) if it is not private; a file system
  /// without flock holds nothing apart.
  [[nodiscard]] static std::optional<FolderLock> take(const std::string& path);
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&&) = delete;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  /// True if `path` is still the folder that is held.
  [[nodiscard]] bool is_of(const std::string& path) const;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace hyperslab::io
