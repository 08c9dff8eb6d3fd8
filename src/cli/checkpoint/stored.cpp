// SPDX-License-Identifier: Apache-2.0
#include "stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "../command.hpp"
#include "hyperslab/core/driver.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/file_patterns.hpp"

namespace hyperslab::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";          // the vocabulary without files
constexpr const char* kSynthetic = "synthetic";  // tokens without files

bool is_present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The folder in which a run was started whose step is `folder`: the part before the deck's
/// relative path to it. Empty if the step is somewhere else by now.
fs::path start_folder(const std::string& folder, const train::Config& config) {
  const auto& given = config.checkpoint.directory;
  const fs::path inside =
      given.empty() ? fs::path(config.run.directory) / "checkpoints" : fs::path(given);
  if (inside.is_absolute()) return {};
  std::error_code error;
  const fs::path step = fs::canonical(folder, error);
  const std::string end = "/" + inside.lexically_normal().string();
  const std::string directory = step.parent_path().string();
  if (error || !directory.ends_with(end)) return {};
  return directory.substr(0, directory.size() - end.size()) + "/";
}

/// For a deck that a checkpoint holds: a GPU is there, and keys outside the step do not matter.
deck::Surroundings anywhere_but_in_training(bool reads_data) {
  deck::Surroundings anywhere;
  anywhere.ranks = 0;
  anywhere.for_training = false;
  anywhere.has_cuda_device = true;
  anywhere.has_cuda_build = true;
  anywhere.unused = keys_beside_the_step(reads_data);
  anywhere.unused.emplace_back("train.global_batch");
  std::ranges::copy(keys_of_training(), std::back_inserter(anywhere.unused));
  return anywhere;
}

/// The stored deck in messages.
std::string name_of(const StoredDeck& stored) { return stored.folder + " (its deck)"; }

/// Folders where relative paths of a stored deck may begin: the current one, which is empty, and
/// the folders where the run may have been started.
std::vector<fs::path> beginnings(const StoredDeck& deck, const train::Config& config) {
  std::vector<fs::path> folders = {fs::path()};
  if (const fs::path start = start_folder(deck.folder, config); !start.empty())
    folders.push_back(start);
  if (!deck.started_in.empty()) folders.push_back(fs::path(deck.started_in) / "");
  return folders;
}

/// True if it is the same path from every folder.
bool is_fixed(const std::string& path) {
  return path.empty() || path == kBytes || path == kSynthetic || path.starts_with('~') ||
         fs::path(path).is_absolute();
}

/// The first of the paths that names no file from `folder` on, or null.
const std::string* missing_in(const fs::path& folder, const std::vector<std::string>& paths) {
  const auto missing = std::ranges::find_if(paths, [&](const std::string& path) {
    return !is_fixed(path) && !io::names_files(io::pattern_below(folder.string(), path));
  });
  return missing == paths.end() ? nullptr : &*missing;
}

/// "'a.bin' is neither in HERE nor in THERE, where the run was started", or with a path for each.
/// `missing`: of all `folders`.
std::string not_found_in(const std::vector<fs::path>& folders,
                         const std::vector<std::string>& missing) {
  std::error_code ignored;
  const std::string here = fs::current_path(ignored).string();
  std::vector<std::string> others;
  std::vector<std::string> phrases;
  for (std::size_t i = 1; i < folders.size(); ++i) {
    const std::string other = folders[i].parent_path().string();
    if (other == here || std::ranges::count(others, other) != 0) continue;
    others.push_back(other);
    phrases.push_back(fmt::format("'{}' not in {}", missing[i], other));
  }
  if (others.empty()) return fmt::format("'{}' is not in {}", missing[0], here);
  if (std::ranges::count(missing, missing[0]) == std::ssize(missing)) {
    return fmt::format("'{}' is neither in {} nor in {}, where the run was started", missing[0],
                       here, fmt::join(others, " nor in "));
  }
  return fmt::format("'{}' is not in {} and {}, where the run was started", missing[0], here,
                     fmt::join(phrases, " and "));
}

}  // namespace

train::Config as_stored(const StoredDeck& stored, const std::vector<std::string>& overrides) {
  deck::Surroundings anywhere = anywhere_but_in_training(false);
  anywhere.unused.emplace_back("precision.gemm");  // a CPU takes it with fp32, a GPU does not
  anywhere.unused.emplace_back("run.device");      // experts are of CPUs, other keys of GPUs
  return deck::read_deck(stored.text, name_of(stored), overrides, anywhere);
}

train::Config read_stored_deck(const StoredDeck& stored, const std::vector<std::string>& overrides,
                               int ranks, std::vector<std::string>& notes, bool reads_data) {
  deck::Surroundings anywhere = anywhere_but_in_training(reads_data);
  anywhere.ranks = ranks;
  const auto read = [&](const std::vector<std::string>& settings) {
    std::string cuts;
    train::Config config = deck::read_deck(stored.text, name_of(stored), settings, anywhere, &cuts);
    if (!cuts.empty()) notes.push_back("to fit --set: " + cuts);
    std::string& base = config.checkpoint.initial;  // the base of adapters
    if (config.adapter && !base.empty()) base = found_path(base, stored, config);
    return config;
  };
  if (cuda_device_count() > 0) return read(overrides);
  if (const std::string problem = cuda_driver_problem(); !problem.empty()) {
    notes.push_back("computed on the CPU: " + problem);
  }
  const train::Config was = as_stored(stored);
  const Precision trained = was.precision.compute;
  anywhere.has_cuda_device = false;
  anywhere.has_cuda_build = false;
  std::vector<std::string> here = {"run.device=cpu", "precision.compute=fp32"};
  if (was.model.frozen_format == param::StorageFormat::bf16) {
    here.emplace_back("model.frozen_format=compute");
  }
  here.insert(here.end(), overrides.begin(), overrides.end());
  train::Config config = read(here);
  if (trained != Precision::fp32 && config.precision.compute == Precision::fp32) {
    notes.push_back(
        trained == Precision::bf16
            ? "computed in fp32 on the CPU, which is faster there; --set "
              "precision.compute=bf16 computes as the run did"
            : fmt::format("computed in fp32 on the CPU: {} needs a GPU", name_of(trained)));
  }
  return config;
}

std::string found_path(const std::string& path, const StoredDeck& deck,
                       const train::Config& config) {
  if (is_fixed(path)) return path;
  for (const fs::path& folder : beginnings(deck, config)) {
    if (is_present(folder / path)) return (folder / path).string();
  }
  return path;
}

void find_paths(const std::string& key, std::vector<std::string>& paths, const StoredDeck& deck,
                const train::Config& config, const std::string& remedy) {
  const std::vector<fs::path> folders = beginnings(deck, config);
  std::vector<std::string> missing;
  for (const fs::path& folder : folders) {
    if (const std::string* one = missing_in(folder, paths)) {
      missing.push_back(*one);
      continue;
    }
    for (std::string& path : paths) {
      if (!is_fixed(path)) path = io::pattern_below(folder.string(), path);
    }
    return;
  }
  throw Error(ExitCode::data, fmt::format("{}: {} {}; {}", name_of(deck), key,
                                          not_found_in(folders, missing), remedy));
}

StoredDeck stored_deck(const io::CheckpointReader& reader) {
  return {reader.meta().deck, reader.folder(), reader.meta().started_in};
}

std::string stored_vocabulary_path(const io::CheckpointReader& reader,
                                   const train::Config& config) {
  const std::string& named = config.data.vocabulary;
  if (named.empty() || named == kBytes) return named;
  if (auto kept = reader.vocabulary_path(); !kept.empty()) return kept;
  return found_path(named, stored_deck(reader), config);
}

std::string stored_vocabulary(const io::CheckpointReader& reader, const train::Config& config) {
  const std::string& named = config.data.vocabulary;
  auto found = stored_vocabulary_path(reader, config);
  if (found.empty() || found == kBytes || is_present(found)) return found;
  const std::vector<fs::path> folders = beginnings(stored_deck(reader), config);
  throw Error(
      ExitCode::data,
      fmt::format("{}: it keeps no vocabulary, and its deck's vocabulary {}; "
                  "name the vocabulary's path",
                  reader.folder(), not_found_in(folders, std::vector(folders.size(), named))));
}

std::vector<std::string> plain_layout(std::int64_t data, std::int64_t tensor,
                                      std::int64_t pipeline) {
  return {fmt::format("parallel.data={}", data),
          fmt::format("parallel.tensor={}", tensor),
          fmt::format("parallel.pipeline={}", pipeline),
          "parallel.context=1",
          "parallel.expert=1",
          "parallel.sequence=false",
          "parallel.schedule=1f1b",
          "parallel.virtual_stages=1",
          "parallel.stage_layers=[]",
          "parallel.zero=0",
          "parallel.shard=0"};
}

}  // namespace hyperslab::cli
