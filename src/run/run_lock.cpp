// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/run/run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ranges>
#include <system_error>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "utc.hpp"

namespace hyperslab::run {
namespace {

namespace fs = std::filesystem;

/// "(job 77) " of the batch system, or nothing.
std::string job() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return fmt::format("(job {}) ", value);
  }
  return "";
}

std::string on_host(const std::string& host) { return " on host " + host + " "; }

bool has_no_flock(int error) {
  return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace

RunLock::RunLock(std::string directory, const std::string& host, std::string key)
    : directory_(std::move(directory)), path_(directory_ + "/lock"), key_(std::move(key)) {
  try {
    make_directory();
    do {  // again if the one before removed the file when it let go
      if (file_ >= 0) ::close(file_);
      open_file();
      held_ = try_to_hold();
    } while (held_ && !is_in_place());
  } catch (const Error&) {
    remove_what_was_made();
    if (file_ >= 0) ::close(file_);
    throw;
  }
  if (!held_) return;
  const std::string left = text();
  if (!left.empty() && (left + " ").find(on_host(host)) == std::string::npos) {
    log::warn(
        fmt::format("{} still names {}: it was killed, or locks do not reach other hosts "
                    "here; make sure that it has ended",
                    path_, left));
  }
  write(fmt::format("process {}{}{}since {}\n", ::getpid(), on_host(host), job(), utc_now()));
}

RunLock::~RunLock() {
  if (held_) write("");
  if (!kept_) remove_what_was_made();  // while it is still held
  if (file_ >= 0) ::close(file_);
}

void RunLock::fail(const std::string& what, int error) const {
  throw Error(ExitCode::storage,
              fmt::format("{}: {}: {}; choose another {} or make it writable", directory_, what,
                          std::generic_category().message(error), key_));
}

void RunLock::make_directory() {
  std::error_code error;
  if (fs::exists(directory_, error) && !fs::is_directory(directory_, error)) {
    throw Error(ExitCode::storage,
                fmt::format("{}: is a file, expected a directory; remove it or choose another {}",
                            directory_, key_));
  }
  for (fs::path path = directory_; !path.empty() && !fs::exists(path, error) && !error;
       path = path.parent_path()) {
    made_.insert(made_.begin(), path.string());
  }
  for (const std::string& path : made_) {
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      const int reason = errno;
      made_.erase(std::ranges::find(made_, path), made_.end());
      fail("cannot make this directory", reason);
    }
  }
}

void RunLock::open_file() {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  made_file_ = made_file_ || file_ >= 0;
  if (file_ < 0 && errno == EEXIST) file_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0 && errno == EACCES) file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail("cannot open the file 'lock'", errno);
}

/// False if the file system cannot. Throws Error(storage) if someone else holds it.
bool RunLock::try_to_hold() {
  int result = 0;
  do {
    result = ::flock(file_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  const int error = errno;
  if (error == EWOULDBLOCK) {
    made_file_ = false;
    const std::string holder = text();
    throw Error(ExitCode::storage,
                fmt::format("{} is used by {}; wait until it has ended, or choose another {}",
                            directory_, holder.empty() ? "another process" : holder, key_));
  }
  if (!has_no_flock(error)) fail("cannot lock the file 'lock'", error);
  log::warn(fmt::format("{}: this file system has no locks ({}): nothing keeps two runs apart here",
                        directory_, std::generic_category().message(error)));
  return false;
}

bool RunLock::is_in_place() const {
  struct stat mine {};
  struct stat there {};
  return ::fstat(file_, &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/// What the file says, one line.
std::string RunLock::text() const {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(file_, bytes.data(), bytes.size(), 0);
  const std::string all(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  return all.substr(0, all.find('\n'));
}

/// The lock holds without it, so a full disk is no reason to stop.
void RunLock::write(const std::string& text) const {
  if (::ftruncate(file_, 0) != 0) return;
  const auto length = static_cast<ssize_t>(text.size());
  if (::pwrite(file_, text.data(), text.size(), 0) != length) (void)::ftruncate(file_, 0);
}

void RunLock::remove_what_was_made() const {
  if (made_file_ && is_in_place()) (void)::unlink(path_.c_str());
  for (const std::string& path : std::views::reverse(made_)) (void)::rmdir(path.c_str());
}

bool is_inside(const std::string& path, const std::string& directory) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path), error);
  const fs::path outer = fs::weakly_canonical(fs::absolute(directory), error);
  const auto end = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first;
  return end == outer.end() || (std::next(end) == outer.end() && end->empty());
}

void probe_directory(const std::string& directory, const std::string& label) {
  const std::string first = directory + "/.probe." + label + std::to_string(getpid());
  const std::string second = first + ".renamed";
  const auto fail = [&](const std::string& what) {
    const std::string reason = std::strerror(errno);
    (void)unlink(first.c_str());
    (void)unlink(second.c_str());
    throw Error(ExitCode::storage, directory + ": " + what + ": " + reason +
                                       "; choose another run.directory or make it writable");
  };
  std::error_code made;
  std::filesystem::create_directories(directory, made);
  if (made) {
    errno = made.value();
    fail("cannot make this directory");
  }
  const int file = open(first.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail("cannot create a file");
  const bool written = write(file, "probe\n", 6) == 6 && fsync(file) == 0;
  if (close(file) != 0 || !written) fail("cannot write to a file");
  if (rename(first.c_str(), second.c_str()) != 0) fail("cannot rename a file");
  if (unlink(second.c_str()) != 0) fail("cannot remove a file");
}

void remove_stale_probes(const std::string& directory) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().filename().string().starts_with(".probe.")) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path, error);
}

}  // namespace hyperslab::run
