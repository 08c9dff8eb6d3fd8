// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "checkpoint/manifest.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostLatestBytes = 4096;  // it holds one name

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// The step of "<step name><suffix>".
std::optional<std::int64_t> step_before(const std::string& name, const std::string& suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return step_of_name(name.substr(0, name.size() - suffix.size()));
}

/// True if it is the name of an unfinished step: "<step name>.tmp", or that followed by a number.
bool is_temporary(const std::string& name) {
  const std::size_t last = name.find_last_not_of("0123456789");
  const std::size_t end = last == std::string::npos ? 0 : last + 1;
  return step_before(name, kTemporary).has_value() ||
         step_before(name.substr(0, end), kTemporary).has_value();
}

/// Runs `work`; if the disk refuses it, warns once for every message. Whether it went
/// well.
bool attempt(const std::function<void()>& work) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  try {
    work();
    return true;
  } catch (const Error& error) {
    const std::lock_guard lock(mutex);
    const bool is_new = reported.insert(error.what()).second;
    if (is_new) log::warn(fmt::format("{}; it stays until it can be removed", error.what()));
    return false;
  }
}

bool complete(const StepFolder& folder) {
  try {
    (void)open_manifest(folder.path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<StepFolder> complete_steps(const std::string& directory) {
  std::vector<StepFolder> steps = find_steps(directory);
  std::erase_if(steps, [](const StepFolder& folder) { return !complete(folder); });
  return steps;
}

/// Which of the steps (ascending) the policy keeps.
std::set<std::int64_t> kept_steps(const std::vector<StepFolder>& steps, const KeepPolicy& policy) {
  std::vector<std::int64_t> counted;  // not abandoned
  std::set<std::int64_t> kept;
  for (const StepFolder& folder : steps) {
    const bool abandoned = std::ranges::count(policy.abandoned, folder.step) > 0;
    if (!abandoned) counted.push_back(folder.step);
    if (policy.keep_every > 0 && folder.step % policy.keep_every == 0) kept.insert(folder.step);
  }
  for (const std::int64_t step : policy.abandoned) {
    if (counted.empty() || step > counted.back()) kept.insert(step);
  }
  const auto newest = std::min(counted.size(), static_cast<std::size_t>(policy.keep));
  kept.insert(counted.end() - static_cast<std::ptrdiff_t>(newest), counted.end());
  if (policy.proven) {
    const auto after = std::ranges::upper_bound(counted, *policy.proven);
    if (after != counted.begin()) kept.insert(*std::prev(after));
  }
  return kept;
}

std::vector<StepFolder> prunable_steps(const std::string& directory, const KeepPolicy& policy) {
  if (policy.keep <= 0) return {};
  std::vector<StepFolder> steps = complete_steps(directory);
  const std::set<std::int64_t> kept = kept_steps(steps, policy);
  const auto latest = latest_step(directory);
  std::erase_if(steps, [&](const StepFolder& folder) {
    return latest == folder.step || kept.contains(folder.step);
  });
  return steps;
}

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("step_{:08d}", step); }

std::optional<std::int64_t> step_of_name(const std::string& name) {
  constexpr std::string_view prefix = "step_";
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0 || step_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::vector<StepFolder> find_steps(const std::string& directory) {
  std::map<std::int64_t, std::string> found;
  for (const std::string& name : names_in(directory)) {
    if (const auto step = step_before(name, kReplaced)) found.try_emplace(*step, name);
    if (const auto step = step_of_name(name)) found[*step] = name;
  }
  std::vector<StepFolder> steps;
  steps.reserve(found.size());
  for (const auto& [step, name] : found) steps.push_back({step, directory + "/" + name});
  return steps;
}

std::optional<std::int64_t> latest_step(const std::string& directory) {
  std::string name;
  try {
    name = storage::read_text(directory + "/" + kLatestName, kMostLatestBytes);
  } catch (const Error&) {
    return std::nullopt;
  }
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  return step_of_name(name);
}

void remove_stale(const std::string& directory) {
  const std::vector<std::string> names = names_in(directory);
  const std::set<std::string> all(names.begin(), names.end());
  for (const std::string& name : names) {
    const auto replaced = step_before(name, kReplaced);
    const bool stale = is_temporary(name) ||
                       name == std::string(kLatestName) + "." + kLatestSuffix ||
                       (replaced && all.contains(step_name(*replaced)));
    if (stale) attempt([&] { storage::remove_tree(directory + "/" + name); });
  }
}

std::string free_temporary(const std::string& directory, const std::string& name) {
  const std::string first = directory + "/" + name + kTemporary;
  std::string path = first;
  std::error_code ignored;
  for (int n = 1; fs::exists(fs::symlink_status(path, ignored)); ++n) {
    path = first + std::to_string(n);
  }
  return path;
}

std::vector<std::int64_t> list_checkpoints(const std::string& directory) {
  std::vector<std::int64_t> steps;
  for (const StepFolder& folder : complete_steps(directory)) steps.push_back(folder.step);
  return steps;
}

std::vector<std::int64_t> prunable_checkpoints(const std::string& directory,
                                               const KeepPolicy& policy) {
  std::vector<std::int64_t> found;
  for (const StepFolder& folder : prunable_steps(directory, policy)) found.push_back(folder.step);
  return found;
}

void prune_checkpoints(const std::string& directory, const KeepPolicy& policy) {
  remove_stale(directory);
  for (const StepFolder& folder : prunable_steps(directory, policy)) {
    // Under another name first: a half-deleted step must never look like a complete one.
    const std::string doomed = free_temporary(directory, step_name(folder.step));
    const bool removed = attempt([&] {
      storage::rename(folder.path, doomed);
      storage::sync_folder(directory);
      storage::remove_tree(doomed);
    });
    if (removed) log::debug("removed checkpoint " + folder.path);
  }
}

}  // namespace hyperslab::io
