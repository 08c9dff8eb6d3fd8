// SPDX-License-Identifier: Apache-2.0
#include "dataset/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

void fail_write(const std::string& path, int error_number, std::source_location where) {
  throw Error(ExitCode::storage,
              "cannot write '" + path + "': " + std::strerror(error_number) +
                  "; free space, or give a path on other storage",
              where);
}

AtomicFile::AtomicFile(std::string path, const std::string& suffix)
    : path_(std::move(path)), temporary_(path_ + "." + suffix + "." + std::to_string(::getpid())) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) fail_write(path_, EISDIR);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_write(path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(size_, bytes);
  size_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_write(path_, written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void AtomicFile::reserve(std::int64_t bytes) {
  const int error_number = ::posix_fallocate(fd_, 0, bytes);
  if (error_number != 0) fail_write(path_, error_number);
}

std::size_t AtomicFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_, out.data() + done, out.size() - done, offset + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_write(path_, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_write(path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) fail_write(path_, errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_write(path_, errno);
  temporary_.clear();
  const auto parent = std::filesystem::path(path_).parent_path();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY);
  if (folder < 0) return;  // a folder that may be written but not read: the rename has happened
  const int result = ::fsync(folder);
  const int error_number = errno;
  ::close(folder);
  // Some file systems refuse to sync folders (EINVAL).
  if (result != 0 && error_number != EINVAL) fail_write(path_, error_number);
}

}  // namespace hyperslab::io
