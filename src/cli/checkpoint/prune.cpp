// SPDX-License-Identifier: Apache-2.0
#include "prune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "exchange.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::cli {
namespace {

namespace fs = std::filesystem;

/// A run's directory stands for its checkpoints.
std::string checkpoints_of(const std::string& path) {
  std::error_code ignored;
  const std::string inside = path + "/checkpoints";
  std::string directory = fs::is_directory(inside, ignored) ? inside : path;
  if (fs::is_directory(directory, ignored)) return directory;
  throw Error(ExitCode::checkpoint, path + ": is no directory of checkpoints");
}

std::string folder_of(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/step_{:08d}", directory, step);
}

std::uintmax_t bytes_in(const std::string& folder) {
  std::uintmax_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

/// Folders of steps that are not complete are their owner's to look at.
void name_what_is_damaged(const std::string& directory) {
  const std::vector<std::int64_t> complete = io::list_checkpoints(directory);
  std::error_code ignored;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.starts_with("step_") && name.find('.') == std::string::npos;
    const auto is_it = [&](std::int64_t step) { return fmt::format("step_{:08d}", step) == name; };
    if (is_step && std::ranges::none_of(complete, is_it)) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  for (const std::string& path : found) fmt::print("damaged, stays: {}\n", path);
}

}  // namespace

void add_prune_options(Arguments& args) {
  args.add()("keep", po::value<std::int64_t>(),
             "prune: how many of the newest steps stay, 2 or more")(
      "keep-every", po::value<std::int64_t>()->default_value(0),
      "prune: steps that are multiples of it stay as well")("dry-run",
                                                            "prune: say what would be removed");
}

void prune_checkpoints(comm::World& world, const Arguments& args) {
  io::KeepPolicy policy;
  policy.keep = args.has("keep") ? args.get<std::int64_t>("keep") : 0;
  if (policy.keep < 2) {
    throw Error(ExitCode::usage, "checkpoint prune needs --keep N with N of 2 or more");
  }
  policy.keep_every = args.get<std::int64_t>("keep-every");
  if (policy.keep_every < 0) throw Error(ExitCode::usage, "--keep-every must not be negative");
  const std::string directory = checkpoints_of(only_folder(args));
  const bool dry = args.has("dry-run");
  std::optional<ImportLocks> locks;
  if (!dry) locks.emplace(directory, world.host());
  std::uintmax_t bytes = 0;
  std::size_t count = 0;
  for (const std::int64_t step : io::prunable_checkpoints(directory, policy)) {
    const std::string folder = folder_of(directory, step);
    bytes += bytes_in(folder);
    ++count;
    fmt::print("{}: {}\n", dry ? "would remove" : "removes", folder);
  }
  if (!dry) io::prune_checkpoints(directory, policy);
  name_what_is_damaged(directory);
  fmt::print("{} checkpoint{} {}, {:.1f} MiB\n", count, count == 1 ? "" : "s",
             dry ? "to remove" : "removed", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace hyperslab::cli
