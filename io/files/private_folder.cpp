// SPDX-License-Identifier: Apache-2.0
#include "files/private_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "files/storage.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/storage_call.hpp"

namespace hyperslab::io {
namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr mode_t kPermissions = 07777;

/// An open folder, never by a link; -1 with errno.
int open_folder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/// The reason why an open folder is not private; empty if it is.
std::string problem_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return "it cannot be looked at";
  if (info.st_uid != ::geteuid()) return fmt::format("it belongs to user {}", info.st_uid);
  const mode_t mode = info.st_mode & kPermissions;
  if (mode != kFolderMode) return fmt::format("it has the mode {:04o}, expected 0700", mode);
  return "";
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ExitCode::storage,
              fmt::format("{}: {}; no folder of this program: remove it, or choose another "
                          "checkpoint.memory_directory",
                          path, why));
}

/// A private folder, open. Throws Error(storage).
int open_private(const std::string& path) {
  const int fd = open_folder(path);
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) refuse(path, "it is a link or a file");
  if (fd < 0) throw storage::CallError(path, "opening the folder failed", errno);
  const std::string problem = problem_of(fd);
  if (problem.empty()) return fd;
  ::close(fd);
  refuse(path, problem);
}

}  // namespace

bool is_private_folder(const std::string& path) {
  const int fd = open_folder(path);
  if (fd < 0) return false;
  const bool is_private = problem_of(fd).empty();
  ::close(fd);
  return is_private;
}

void make_private_folder(const std::string& path) {
  const StorageCall call("making", path);
  const int injected = fault::at(storage::kMakeFolder, path);
  if (injected > 0) throw storage::CallError(path, "making the folder failed", injected);
  const bool is_new = ::mkdir(path.c_str(), kFolderMode) == 0;
  if (!is_new && errno != EEXIST) {
    throw storage::CallError(path, "making the folder failed", errno);
  }
  if (is_new) (void)::chmod(path.c_str(), kFolderMode);  // a umask may have taken bits away
  ::close(open_private(path));
}

void require_safe_directory(const std::string& directory) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    throw storage::CallError(directory, "looking at it failed", errno);
  }
  if (!S_ISDIR(info.st_mode)) throw storage::CallError(directory, "opening it failed", ENOTDIR);
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    throw Error(ExitCode::storage,
                fmt::format("{}: it belongs to user {}, who may replace what lies in it; choose a "
                            "checkpoint.memory_directory of root or of your own",
                            directory, info.st_uid));
  }
  const bool others_write = (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (!others_write || (info.st_mode & S_ISVTX) != 0) return;
  throw Error(ExitCode::storage,
              fmt::format("{}: others may replace what lies in it (mode {:04o}); make it sticky "
                          "(chmod +t), or choose another checkpoint.memory_directory",
                          directory, info.st_mode & kPermissions));
}

void make_private_file(const std::string& path) {
  if (::chmod(path.c_str(), kFileMode) != 0) {
    throw storage::CallError(path, "setting its mode failed", errno);
  }
}

std::optional<FolderLock> FolderLock::take(const std::string& path) {
  FolderLock lock(open_private(path));
  int result = 0;
  do {
    result = ::flock(lock.fd_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return lock;
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

bool FolderLock::is_of(const std::string& path) const {
  struct stat mine {};
  struct stat there {};
  return ::fstat(fd_, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

}  // namespace hyperslab::io
