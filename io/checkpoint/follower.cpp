// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "checkpoint/steps.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/checkpoint_follower.hpp"

namespace hyperslab::io {
namespace {

/// A number for the contents of a checkpoint, by the checksums of its blocks (FNV-1a).
std::uint64_t contents_of(const CheckpointReader& reader) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto add = [&](std::uint64_t number) { hash = (hash ^ number) * 0x100000001B3ULL; };
  add(static_cast<std::uint64_t>(reader.meta().step));
  for (const auto& [name, entry] : reader.tensors()) {
    for (const auto& piece : entry.pieces) {
      for (const std::uint32_t crc : piece.crc32c) add(crc);
    }
  }
  return hash;
}

/// Text that is another one once the file was written again.
std::string entry_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return "none";
  return fmt::format("{} {} {}.{:09}", found.st_ino, found.st_size, found.st_mtim.tv_sec,
                     found.st_mtim.tv_nsec);
}

void warn_of_unused(const std::string& folder, const std::string& problem) {
  log::warn(
      fmt::format("checkpoint {} is not used, and the one before it stays: {}", folder, problem));
}

}  // namespace

CheckpointFollower::CheckpointFollower(const std::string& path, const CheckpointReader& known)
    : directory_(std::filesystem::path(known.folder()).parent_path().string()),
      contents_(contents_of(known)) {
  std::error_code ignored;
  if (std::filesystem::equivalent(path, known.folder(), ignored)) {
    throw Error(ExitCode::usage,
                fmt::format("'{}': expected a run directory or a directory of checkpoints to "
                            "follow, found the folder of one step; name the run",
                            path));
  }
}

/// The entries of `latest` and of the manifest that it names.
std::string CheckpointFollower::look() const {
  const std::optional<std::int64_t> step = latest_step(directory_);
  const std::string name = step ? step_name(*step) : "";
  return fmt::format("{} {} {}", name, entry_of(directory_ + "/" + kLatestName),
                     entry_of(directory_ + "/" + name + "/" + kManifestName));
}

std::optional<CheckpointReader> CheckpointFollower::next() {
  const std::string now = look();
  if (now == seen_) return {};
  std::string folder = directory_;
  try {
    CheckpointReader reader(directory_);
    folder = reader.folder();
    const std::uint64_t contents = contents_of(reader);
    if (contents != contents_) {
      const std::vector<std::string> problems = reader.verify();
      if (!problems.empty()) throw Error(ExitCode::checkpoint, problems.front());
      contents_ = contents;
      seen_ = now;
      return reader;
    }
  } catch (const Error& error) {
    if (look() != now) return {};  // the run has published another one meanwhile
    warn_of_unused(folder, error.what());
  }
  seen_ = now;
  return {};
}

}  // namespace hyperslab::io
