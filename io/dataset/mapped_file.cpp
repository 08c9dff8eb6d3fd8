// SPDX-License-Identifier: Apache-2.0
#include "dataset/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

void require_regular_file(const std::string& path, const FileKind& kind) {
  struct stat status {};
  // Before open(), which would wait for ever on a named pipe.
  if (::stat(path.c_str(), &status) != 0) {
    fail_file(path, "a readable file", std::strerror(errno),
              "correct the path; relative paths begin at the working directory", kind);
  }
  if (S_ISDIR(status.st_mode)) {
    fail_file(path, "a file", "a directory",
              "name its files, for example " + path + "/" + kind.pattern, kind);
  }
  if (!S_ISREG(status.st_mode)) {
    fail_file(path, "a regular file", "a device, pipe or socket",
              fmt::format("copy the {} to a file", kind.content), kind);
  }
}

FileStamp stamp_in(const struct stat& status) {
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

FileStamp stamp_of_open_file(int fd, const std::string& path, const FileKind& kind) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    fail_file(path, "a readable file", std::strerror(errno), "check the file system", kind);
  }
  if (status.st_size == 0) {
    fail_file(path, kind.content, "an empty file (0 bytes)", "write or copy the file again", kind);
  }
  return stamp_in(status);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;

 private:
  int fd_;
};

}  // namespace

void fail_file(const std::string& path, const std::string& expected, const std::string& found,
               const std::string& remedy, const FileKind& kind, std::source_location where) {
  throw Error(
      ExitCode::data,
      fmt::format("{} '{}': expected {}, found {}; {}", kind.file, path, expected, found, remedy),
      where);
}

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return stamp_in(status);
}

void require_stamp(const std::string& path, const FileStamp& opened, const FileKind& kind) {
  const std::optional<FileStamp> now = stamp_of(path);
  if (!now || *now == opened) return;
  const std::string remedy = fmt::format(
      "do not change {}s under a run; put the file back as it was, and resume", kind.file);
  if (now->bytes != opened.bytes) {
    fail_file(path, fmt::format("the {} bytes that it had at the start", opened.bytes),
              fmt::format("{} bytes", now->bytes), remedy, kind);
  }
  fail_file(path, "the file as it was at the start", "another time of modification", remedy, kind);
}

MappedFile::MappedFile(const std::string& path, const FileKind& kind) {
  require_regular_file(path, kind);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    fail_file(path, "a readable file", std::strerror(errno), "check owner and permissions", kind);
  }
  const Descriptor guard{fd};
  stamp_ = stamp_of_open_file(fd, path, kind);
  const auto size = static_cast<std::size_t>(stamp_.bytes);
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    fail_file(path, "a file that can be mapped to memory", std::strerror(errno),
              "check the limits of this process (ulimit -v)", kind);
  }
  data_ = static_cast<const std::byte*>(mapped);
  size_ = size;
  bus_error_line_ = std::make_unique<BusErrorLine>(bytes(), path, kind.file);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      stamp_(other.stamp_),
      bus_error_line_(std::move(other.bus_error_line_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  std::swap(bus_error_line_, other.bus_error_line_);
  return *this;
}

MappedFile::~MappedFile() {
  bus_error_line_.reset();  // before other memory may be where the file was
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::expect(Access access) const {
  if (data_ == nullptr) return;
  // Advice only: a kernel that refuses it still reads correctly.
  (void)::madvise(const_cast<std::byte*>(data_), size_,
                  access == Access::sequential ? MADV_SEQUENTIAL : MADV_RANDOM);
}

}  // namespace hyperslab::io
