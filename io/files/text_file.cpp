// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/text_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "files/atomic_file.hpp"
#include "files/storage.hpp"

namespace hyperslab::io {
namespace {

void write_in_place(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail_write(path, errno);
  int error_number = 0;
  while (!text.empty() && error_number == 0) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error_number = errno;
    }
  }
  if (::close(fd) != 0 && error_number == 0) error_number = errno;
  if (error_number != 0) fail_write(path, error_number);
}

}  // namespace

void write_text_file(const std::string& path, std::string_view text) {
  if (is_written_in_place(path)) return write_in_place(path, text);
  replace_text(path, text);
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
