// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/text_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "files/atomic_file.hpp"
#include "files/storage.hpp"

namespace hyperslab::io {
namespace {

/// Writes all of a text to the end or the offset of an open file; the error number, 0 without one.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void write_in_place(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail_write(path, errno);
  int error_number = write_all(fd, text);
  if (::close(fd) != 0 && error_number == 0) error_number = errno;
  if (error_number != 0) fail_write(path, error_number);
}

/// An open file that other processes append to, too, while it holds its lock. File systems without
/// locks go without.
class SharedFile {
 public:
  explicit SharedFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail_write(path, errno);
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  SharedFile(SharedFile&&) = delete;
  SharedFile& operator=(SharedFile&&) = delete;
  ~SharedFile() { ::close(fd_); }

  /// Appends and syncs, or leaves the file as it was; the error number, 0 without one.
  [[nodiscard]] int append(const std::string& text) const {
    const off_t size = ::lseek(fd_, 0, SEEK_END);
    if (size < 0) return errno;
    int error_number = write_all(fd_, text);
    if (error_number == 0 && ::fsync(fd_) != 0 && errno != EINVAL) error_number = errno;
    if (error_number != 0) (void)!::ftruncate(fd_, size);
    return error_number;
  }
  [[nodiscard]] bool is_empty() const { return ::lseek(fd_, 0, SEEK_END) == 0; }
  [[nodiscard]] bool ends_a_line() const {
    char last = 0;
    const off_t size = ::lseek(fd_, 0, SEEK_END);
    return size <= 0 || (::pread(fd_, &last, 1, size - 1) == 1 && last == '\n');
  }

 private:
  int fd_;
};

}  // namespace

void write_text_file(const std::string& path, std::string_view text) {
  if (is_written_in_place(path)) return write_in_place(path, text);
  replace_text(path, text);
}

void append_line(const std::string& path, std::string_view line) {
  const SharedFile file(path);
  const int error_number = file.append((file.ends_a_line() ? "" : "\n") + std::string(line) + '\n');
  if (error_number == 0) return;
  if (file.is_empty()) ::unlink(path.c_str());  // it had no lines before
  fail_write(path, error_number);
}

void require_place_for_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail_write(path, EISDIR);
  if (is_written_in_place(path)) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!std::filesystem::is_directory(folder.empty() ? "." : folder, error)) {
    fail_write(path, error ? error.value() : ENOTDIR);
  }
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) fail_write(path, errno);
  // A rename would replace a file that is protected against writing.
  if (::access(path.c_str(), W_OK) != 0 && errno != ENOENT) fail_write(path, errno);
}

std::string read_text_file(const std::string& path, std::uint64_t most) {
  return storage::read_text(path, most);
}

}  // namespace hyperslab::io
