// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "checkpoint/manifest.hpp"
#include "checkpoint/steps.hpp"
#include "checkpoint/vocabulary.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

/// A checkpoint that was found and whose manifest is sound.
struct Opened {
  std::string folder;
  Manifest manifest;
};

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_step_folder(const std::string& path) {
  std::error_code error;
  return step_of_name(fs::path(path).filename().string()).has_value() ||
         fs::exists(path + "/" + kManifestName, error);
}

/// The steps in the order in which they are tried: the one that `latest` names, older ones from new
/// to old, then, if `latest` is of no use or none of these is complete, newer ones.
std::vector<StepFolder> candidates(const std::string& directory) {
  std::vector<StepFolder> steps = find_steps(directory);
  std::ranges::reverse(steps);
  const auto latest = latest_step(directory);
  if (!latest) {
    if (!steps.empty()) {
      log::warn(fmt::format("{}/{} is missing or torn; taking the newest complete step", directory,
                            kLatestName));
    }
    return steps;
  }
  if (std::ranges::find(steps, *latest, &StepFolder::step) == steps.end()) {
    log::warn(fmt::format("{}/{} names {}, which is not there; taking the newest complete step",
                          directory, kLatestName, step_name(*latest)));
    return steps;
  }
  std::ranges::stable_partition(steps, [&](const StepFolder& s) { return s.step <= *latest; });
  return steps;
}

Opened open_newest(const std::string& directory) {
  const std::vector<StepFolder> steps = candidates(directory);
  std::string reasons;
  for (const StepFolder& step : steps) {
    try {
      return {step.path, open_manifest(step.path)};
    } catch (const Error& error) {
      log::warn(fmt::format("checkpoint {} is not used: {}", step_name(step.step), error.what()));
      reasons += fmt::format("\n  {}", error.what());
    }
  }
  if (steps.empty()) {
    throw Error(ExitCode::checkpoint,
                directory +
                    ": there is no checkpoint in it (no folder step_NNNNNNNN, neither here "
                    "nor in a folder named checkpoints)");
  }
  throw Error(ExitCode::checkpoint, fmt::format("{}: none of {} checkpoints is complete:{}",
                                                directory, steps.size(), reasons));
}

Opened open_step(const std::string& directory, std::int64_t expected) {
  const std::vector<StepFolder> steps = find_steps(directory);
  const auto found = std::ranges::find(steps, expected, &StepFolder::step);
  if (found != steps.end()) return {found->path, open_manifest(found->path)};
  std::string there;
  for (const StepFolder& step : steps) there += fmt::format(" {}", step.step);
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: there is no checkpoint of step {}; there are:{}", directory,
                          expected, there.empty() ? " none" : there));
}

/// Directory with the steps: `path` itself or, if it has none, the folder of checkpoints of a run
/// directory.
std::string directory_of_steps(const std::string& path) {
  std::error_code error;
  std::string inside = path + "/checkpoints";
  if (!find_steps(path).empty() || !fs::is_directory(inside, error)) return path;
  return inside;
}

Opened open_path(const std::string& path, std::optional<std::int64_t> step) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw Error(
        ExitCode::checkpoint,
        path + (fs::exists(path, error) ? ": this is a file, expected a folder: a step's, a "
                                          "directory of them, or a run directory"
                                        : ": there is no such folder"));
  }
  if (is_step_folder(path)) return {path, open_manifest(path)};
  const std::string directory = directory_of_steps(path);
  return step ? open_step(directory, *step) : open_newest(directory);
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& path, std::optional<std::int64_t> step) {
  Opened opened = open_path(without_slashes(path), step);
  folder_ = std::move(opened.folder);
  meta_ = std::move(opened.manifest.meta);
  tensors_ = std::move(opened.manifest.tensors);
  files_ = std::move(opened.manifest.files);
  vocabulary_ = std::move(opened.manifest.vocabulary);
  block_bytes_ = opened.manifest.block_bytes;
  if (step && meta_.step != *step) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: it is of step {}, expected {}", folder_, meta_.step, *step));
  }
}

std::uint64_t CheckpointReader::bytes() const {
  const auto add = [](std::uint64_t sum, const auto& file) { return sum + file.bytes; };
  const auto tensors = std::accumulate(files_.begin(), files_.end(), std::uint64_t{0}, add);
  return std::accumulate(vocabulary_.begin(), vocabulary_.end(), tensors, add);
}

std::string CheckpointReader::vocabulary_path() const {
  if (vocabulary_.empty()) return "";
  const std::vector<std::string> problems = vocabulary_problems(folder_, vocabulary_);
  if (!problems.empty()) {
    throw Error(ExitCode::checkpoint,
                problems.front() + "; copy the file again, or name another vocabulary");
  }
  return folder_ + "/" + kVocabularyFolder;
}

bool is_quantized(const CheckpointReader& reader) {
  return std::ranges::any_of(reader.tensors(),
                             [](const auto& tensor) { return tensor.first.ends_with(".codes"); });
}

std::string describe(const CheckpointReader& reader, const std::string& base) {
  constexpr double mib = 1 << 20;
  const CheckpointMeta& meta = reader.meta();
  std::string text = fmt::format(
      "folder   {}\nstep     {}\nlayout   {}\ntokens   {}\nversion  {}\ntensors  {}\nbytes    {} "
      "({:.1f} MiB in {} files)\n",
      reader.folder(), meta.step, printable(meta.layout), meta.tokens_seen, printable(meta.version),
      reader.tensors().size(), reader.bytes(), static_cast<double>(reader.bytes()) / mib,
      reader.files().size() + reader.vocabulary().size());
  if (meta.base_fingerprint) {
    text += fmt::format("holds    adapters alone; their base: {} (fingerprint {:016x})\n",
                        base.empty() ? "random weights" : printable(base), *meta.base_fingerprint);
  }
  if (!reader.vocabulary().empty()) {
    std::vector<std::string> names;
    for (const auto& entry : reader.vocabulary()) names.push_back(printable(entry.name));
    text += fmt::format("vocabulary {}\n", fmt::join(names, ", "));
  }
  constexpr std::string_view prefix = "model/";
  std::size_t width = 0;
  for (const auto& [name, entry] : reader.tensors()) {
    if (name.starts_with(prefix)) width = std::max(width, name.size());
  }
  for (const auto& [name, entry] : reader.tensors()) {
    if (!name.starts_with(prefix)) continue;
    text += fmt::format("{:<{}}  {:<20}  {:<3}  {} piece{}\n", printable(name), width,
                        entry.global_shape.str(), name_of(entry.dtype), entry.pieces.size(),
                        entry.pieces.size() == 1 ? "" : "s");
  }
  return text;
}

}  // namespace hyperslab::io
