// SPDX-License-Identifier: Apache-2.0
#include "files/atomic_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace hyperslab::io {
namespace {

/// Runs `work`; the system's error becomes fail_write()'s.
template <class Work>
auto writing(const std::string& path, Work work) {
  try {
    return work();
  } catch (const storage::CallError& error) {
    fail_write(path, error.error_number());
  }
}

std::string advice(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR: return "make its folder, or give another path";
    case EISDIR: return "give the path of a file";
    case EACCES:
    case EPERM:
    case EROFS: return "give a path that can be written";
    default: return "free space, or give a path on other storage";
  }
}

storage::File create_beside(const std::string& path, const std::string& temporary) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail_write(path, EISDIR);
    if (!S_ISREG(status.st_mode)) {
      throw Error(ExitCode::storage,
                  "cannot write '" + path +
                      "': a device or a pipe would be replaced by a file; give the path of a file");
    }
  }
  return writing(path, [&] { return storage::File::create(temporary); });
}

}  // namespace

void fail_write(const std::string& path, int error_number, std::source_location where) {
  throw Error(ExitCode::storage,
              "cannot write '" + path + "': " + std::generic_category().message(error_number) +
                  "; " + advice(error_number),
              where);
}

std::string process_suffix(std::string_view kind) {
  return std::string(kind) + "." + std::to_string(::getpid());
}

bool is_written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

AtomicFile::AtomicFile(std::string path, const std::string& suffix)
    : path_(std::move(path)),
      temporary_(path_ + "." + suffix),
      file_(create_beside(path_, temporary_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(size_, bytes);
  size_ += static_cast<std::int64_t>(bytes.size());
}

void AtomicFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  writing(path_,
          [&] { file_.write_at(static_cast<std::uint64_t>(offset), bytes.data(), bytes.size()); });
}

void AtomicFile::reserve(std::int64_t bytes) {
  writing(path_, [&] { file_.reserve(static_cast<std::uint64_t>(bytes)); });
}

std::size_t AtomicFile::read_at(std::int64_t offset, std::span<std::byte> out) const {
  return writing(path_, [&] {
    return file_.read_at(static_cast<std::uint64_t>(offset), out.data(), out.size());
  });
}

void AtomicFile::commit() {
  writing(path_, [&] {
    file_.sync();
    file_.close();
    storage::rename(temporary_, path_);
    temporary_.clear();
    storage::sync_folder(storage::parent_of(path_));
  });
}

void replace_text(const std::string& path, std::string_view text, const std::string& suffix) {
  AtomicFile file(path, suffix);
  file.append(text);
  file.commit();
}

}  // namespace hyperslab::io
