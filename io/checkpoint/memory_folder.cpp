// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/memory_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <ranges>
#include <utility>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/steps.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/run_id.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kForgotten = std::chrono::hours(24);
/// A file in a host's folder: the run's id, a space, and its directory of checkpoints.
constexpr const char* kDescription = "run";
constexpr std::uint64_t kMostOfDescription = 1 << 14;

std::string prefix() { return fmt::format("hyperslab-{}-", ::geteuid()); }

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    found.push_back(it->path().string());
  }
  return found;
}

/// Private folders in a folder.
std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> found = entries_of(folder);
  std::erase_if(found, [](const std::string& path) { return !is_private_folder(path); });
  return found;
}

/// Removes the private folder of a host unless a process holds it. Links in it are removed
/// themselves.
bool remove_unheld(const std::string& host) {
  try {
    const auto lock = FolderLock::take(host);
    if (!lock) return false;
  } catch (const Error&) {
    return false;
  }
  std::error_code ignored;
  fs::remove_all(host, ignored);
  fs::remove(fs::path(host).parent_path(), ignored);  // unless another host's folder is there
  return true;
}

struct Description {
  std::string id;
  std::string checkpoints;  ///< the run's directory of them
};

/// The run to which the folder of a host says that it belongs; empty if it does not say so.
Description described(const std::string& host) {
  try {
    const std::string text = storage::read_text(host + "/" + kDescription, kMostOfDescription);
    const std::size_t space = text.find(' ');
    if (space == text.npos) return {};
    return {text.substr(0, space), text.substr(space + 1)};
  } catch (const Error&) {
    return {};
  }
}

bool is_forgotten(const std::string& host) {
  std::error_code error;
  const auto written = fs::last_write_time(host, error);
  return !error && fs::file_time_type::clock::now() - written >= kForgotten;
}

bool is_complete(const StepFolder& step) {
  try {
    (void)open_manifest(step.path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// True if the run `id` has a checkpoint on the disk that is as new as all that the host holds.
bool is_superseded(const std::string& host, const std::string& id) {
  const std::string checkpoints = described(host).checkpoints;
  if (checkpoints.empty() || read_run_id(checkpoints) != id) return false;
  const std::vector<StepFolder> held = find_steps(host);
  const std::int64_t newest = held.empty() ? -1 : held.back().step;
  for (const StepFolder& step : std::views::reverse(find_steps(checkpoints))) {
    if (step.step < newest) return false;
    if (is_complete(step)) return true;
  }
  return false;
}

}  // namespace

MemoryFolder::MemoryFolder(std::string directory, std::string id, std::string host,
                           const std::string& checkpoints)
    : directory_(std::move(directory)),
      id_(std::move(id)),
      host_(std::move(host)),
      checkpoints_(fs::weakly_canonical(checkpoints).string()),
      run_(directory_ + "/" + prefix() + id_),
      path_(run_ + "/" + host_) {}

void MemoryFolder::hold() {
  require(!id_.empty(), "a run without an id keeps nothing in memory");
  std::error_code error;
  if (!fs::exists(directory_, error)) {
    const fs::path parent = storage::parent_of(directory_);
    if (!fs::exists(parent, error)) storage::make_folder(parent.string());
    make_private_folder(directory_);
  }
  require_safe_directory(directory_);
  make_private_folder(run_);
  make_private_folder(path_);
  if (lock_ && lock_->is_of(path_)) return;
  lock_.reset();
  if (auto lock = FolderLock::take(path_)) lock_.emplace(std::move(*lock));
  if (!lock_) {
    throw Error(ExitCode::storage, path_ + " is used by another process; wait until it has ended");
  }
  if (find_steps(path_).empty()) {
    describe();
  } else {
    require_own();
  }
}

void MemoryFolder::describe() const {
  const std::string path = path_ + "/" + kDescription;
  storage::write_text(path, id_ + " " + checkpoints_);
  make_private_file(path);
}

/// The name of a folder proves nothing: whoever owns the directory can rename it.
void MemoryFolder::require_own() const {
  if (described(path_).id == id_) return;
  throw Error(ExitCode::storage,
              path_ + ": its steps belong to another run, whose folder was renamed; remove it");
}

void MemoryFolder::require_private() const {
  require_safe_directory(directory_);
  for (const std::string& folder : {run_, path_}) {
    if (is_private_folder(folder)) continue;
    throw Error(ExitCode::storage, folder + ": it is not there, or not of this user alone");
  }
  require_own();
}

bool MemoryFolder::can_be_read() const {
  std::error_code error;
  if (id_.empty() || !fs::exists(fs::symlink_status(run_, error))) return false;
  if (is_private_folder(run_) && !fs::exists(fs::symlink_status(path_, error))) return false;
  try {
    require_private();
    return true;
  } catch (const Error& problem) {
    log::warn(fmt::format("checkpoints in memory are left out: {}", problem.what()));
    return false;
  }
}

void MemoryFolder::remove() {
  lock_.reset();
  if (id_.empty() || !is_private_folder(run_)) return;
  for (const std::string& host : folders_in(run_)) (void)remove_unheld(host);
  std::error_code ignored;
  fs::remove(run_, ignored);
}

void MemoryFolder::remove_forgotten() const {
  const std::string start = directory_ + "/" + prefix();
  for (const std::string& run : folders_in(directory_)) {
    if (run == run_ || !run.starts_with(start)) continue;
    for (const std::string& host : folders_in(run)) {
      const bool forgotten = is_forgotten(host);
      if (forgotten || is_superseded(host, run.substr(start.size()))) {
        if (!remove_unheld(host)) continue;
        log::info(fmt::format(
            "removed checkpoints in memory {}: {}",
            forgotten ? "that were not used for a day" : "of which the disk has newer ones", host));
      } else if (described(host).checkpoints == checkpoints_) {
        log::warn(
            fmt::format("{}: checkpoints in memory of an earlier run in {} are left out; remove "
                        "them, or they are removed by a start after a day",
                        host, checkpoints_));
      }
    }
    std::error_code ignored;
    if (is_forgotten(run)) fs::remove(run, ignored);  // if it is empty
  }
}

}  // namespace hyperslab::io
