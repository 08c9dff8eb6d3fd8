// SPDX-License-Identifier: Apache-2.0
#include "files/storage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/storage_call.hpp"

namespace hyperslab::io::storage {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw CallError(path, what, error);
}

/// Throws if a test lets the call at `point` fail.
void before(const char* point, const std::string& path, const char* what) {
  const int error = fault::at(point, path);
  if (error > 0) fail(path, what, error);
}

}  // namespace

CallError::CallError(const std::string& path, const char* what, int error_number)
    : Error(ExitCode::storage,
            fmt::format("{}: {}: {}", path, what, std::generic_category().message(error_number))),
      error_number_(error_number) {}

File File::create(const std::string& path) {
  const StorageCall call("creating", path);
  before(kCreate, path, "creating it failed");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) fail(path, "creating it failed", errno);
  return {path, fd};
}

File File::open(const std::string& path) {
  const StorageCall call("opening", path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(path, "opening it failed", errno);
  File file(path, fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail(path, "opening it failed", errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ExitCode::storage, path + ": expected a regular file, found something else");
  }
  return file;
}

File File::open_or_create(const std::string& path) {
  const StorageCall call("opening", path);
  before(kCreate, path, "opening it failed");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail(path, "opening it failed", errno);
  return {path, fd};
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::set_size(std::uint64_t bytes) {
  const StorageCall call("setting the size of", path_);
  before(kResize, path_, "setting its size failed");
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    fail(path_, "setting its size failed", errno);
  }
}

void File::reserve(std::uint64_t bytes) {
  const StorageCall call("reserving room for", path_);
  before(kReserve, path_, "reserving room failed");
  const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (error != 0) fail(path_, "reserving room failed", error);
}

void File::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const StorageCall call("writing", path_);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const int injected = fault::at(kWrite, path_);
    if (injected > 0) fail(path_, "writing failed", injected);
    const std::size_t some = injected == fault::kShortWrite ? (bytes + 1) / 2 : bytes;
    const ssize_t done = ::pwrite(fd_, next, some, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path_, "writing failed", errno);
    if (done == 0) fail(path_, "writing failed", EIO);
    next += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

void File::start_sync(std::uint64_t offset, std::size_t bytes) const {
#ifdef SYNC_FILE_RANGE_WRITE
  const StorageCall call("syncing", path_);
  (void)::sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          SYNC_FILE_RANGE_WRITE);
#endif
}

std::size_t File::read_at(std::uint64_t offset, void* data, std::size_t bytes) const {
  const StorageCall call("reading", path_);
  std::size_t total = 0;
  while (total < bytes) {
    const ssize_t done = ::pread(fd_, static_cast<char*>(data) + total, bytes - total,
                                 static_cast<off_t>(offset + total));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path_, "reading failed", errno);
    if (done == 0) break;
    total += static_cast<std::size_t>(done);
  }
  return total;
}

std::uint64_t File::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail(path_, "reading its size failed", errno);
  return static_cast<std::uint64_t>(info.st_size);
}

bool File::is_removed() const {
  struct stat info {};
  return ::fstat(fd_, &info) == 0 && info.st_nlink == 0;
}

void File::sync() {
  const StorageCall call("syncing", path_);
  before(kSync, path_, "fsync failed");
  if (::fsync(fd_) != 0) fail(path_, "fsync failed", errno);
}

void File::close() {
  if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "closing failed", errno);
}

void make_folder(const std::string& path) {
  const StorageCall call("making", path);
  before(kMakeFolder, path, "making the folder failed");
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(path, "making the folder failed", error.value());
}

void sync_folder(const std::string& path) {
  const StorageCall call("syncing", path);
  before(kSyncFolder, path, "fsync of the folder failed");
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == EACCES) return;  // it may be written, but not read
  if (fd < 0) fail(path, "opening the folder failed", errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) fail(path, "fsync of the folder failed", error);
}

void rename(const std::string& from, const std::string& to) {
  const StorageCall call("renaming", from);
  const std::string what = "renaming it to " + to + " failed";
  before(kRename, from, what.c_str());
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(from, what.c_str(), errno);
}

bool exchange(const std::string& a, const std::string& b) {
  const StorageCall call("exchanging", a);
  const std::string what = "exchanging it with " + b + " failed";
  const int injected = fault::at(kRename, a);
  if (injected == EINVAL) return false;
  if (injected > 0) fail(a, what.c_str(), injected);
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) fail(a, what.c_str(), errno);
#endif
  return false;
}

void remove_tree(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    // Names first: entries may not be removed while the folder is being walked.
    std::vector<std::string> entries;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      entries.push_back(it->path().string());
    }
    std::ranges::sort(entries);
    for (const std::string& entry : entries) remove_tree(entry);
  }
  const StorageCall call("removing", path);
  before(kRemove, path, "removing it failed");
  fs::remove(path, error);
  if (error) fail(path, "removing it failed", error.value());
}

std::string read_text(const std::string& path, std::uint64_t most) {
  const File file = File::open(path);
  std::string text;
  std::size_t done = 0;
  do {
    text.resize(done + (1U << 16));
    const std::size_t some = file.read_at(done, text.data() + done, text.size() - done);
    if (some == 0) break;
    done += some;
    if (done > most) {
      throw Error(ExitCode::storage, fmt::format("{}: it has more than {} bytes", path, most));
    }
  } while (true);
  text.resize(done);
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  File file = File::create(path);
  file.write_at(0, text.data(), text.size());
  file.sync();
  file.close();
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::uint64_t free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0 || info.f_blocks == 0) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace hyperslab::io::storage
