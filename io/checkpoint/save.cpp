// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "checkpoint/steps.hpp"
#include "checkpoint/vocabulary.hpp"
#include "files/atomic_file.hpp"
#include "hyperslab/comm/agree.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io {
namespace {

/// Makes all ranks fail together in a phase; rank 0 runs `undo`, which may be absent.
comm::OnFailure failure(std::int64_t step, const std::function<void()>& undo) {
  const auto text = [step](int rank, std::string message) {
    std::ranges::replace(message, '\n', ' ');
    return fmt::format(
        "checkpoint of step {} was not saved: rank {}: {}; earlier checkpoints "
        "are untouched",
        step, rank, message);
  };
  return {undo, text};
}

void move_back(const std::string& from, const std::string& to, const std::string& old) {
  try {
    if (old == from) {
      if (!storage::exchange(from, to)) log::warn(to + ": the earlier one could not be put back");
      return;
    }
    storage::rename(to, from);
    if (!old.empty()) storage::rename(old, to);
  } catch (const Error& error) {
    log::warn(fmt::format("{}; {} is complete all the same", error.what(), to));
  }
}

/// Text of the file `latest`, or "" if it cannot be read.
std::string latest_text(const std::string& path) {
  try {
    return storage::read_text(path);
  } catch (const Error&) {
    return "";
  }
}

/// Points `latest` back; false if that fails.
bool restore_latest(const std::string& path, const std::string& text) {
  try {
    if (latest_text(path) == text) return true;
    text.empty() ? storage::remove_tree(path) : replace_text(path, text, kLatestSuffix);
    return true;
  } catch (const Error& error) {
    log::warn(error.what());
    return false;
  }
}

bool exists(const std::string& folder) {
  const std::string name = std::filesystem::path(folder).filename().string();
  const std::vector<StepFolder> steps = find_steps(storage::parent_of(folder));
  return std::ranges::any_of(steps, [&](const StepFolder& step) {
    return std::filesystem::path(step.path).filename().string() == name;
  });
}

}  // namespace

std::uint64_t rank_bytes(std::span<const Slab> slabs) {
  constexpr std::uint64_t structure = 64 << 10;  // HDF5's own, and about as much per dataset:
  constexpr std::uint64_t header = 1 << 10;
  std::uint64_t bytes = structure;
  for (const Slab& slab : slabs) bytes += header + slab.data.bytes();
  return bytes;
}

std::string prepare_step(const std::string& directory, const std::string& name,
                         std::uint64_t bytes) {
  storage::make_folder(directory);
  remove_stale(directory);
  require_space(directory, bytes);
  std::string temporary = free_temporary(directory, name);
  try {
    storage::make_folder(temporary);
    storage::sync_folder(directory);
  } catch (const Error&) {
    remove_quietly(temporary);
    throw;
  }
  return temporary;
}

Manifest merged_manifest(const CheckpointMeta& meta, std::span<const std::string> tables,
                         std::size_t block_bytes) {
  Manifest manifest;
  manifest.meta = meta;
  manifest.block_bytes = block_bytes;
  for (const std::string& table : tables) add_table(manifest, table);
  for (const auto& [name, entry] : manifest.tensors) {
    std::vector<Hyperslab> parts;
    parts.reserve(entry.pieces.size());
    for (const auto& piece : entry.pieces) parts.push_back(piece.part);
    const std::string problem = coverage_problem(parts, entry.global_shape);
    if (!problem.empty()) throw Error(ExitCode::internal, "tensor " + name + ": " + problem);
  }
  return manifest;
}

void remove_quietly(const std::string& path) {
  try {
    storage::remove_tree(path);
  } catch (const Error& error) {
    log::warn(fmt::format("{}; the next save removes it", error.what()));
  }
}

void require_space(const std::string& path, std::uint64_t bytes) {
  const std::uint64_t free = storage::free_bytes(path);
  if (free >= bytes) return;
  constexpr double mib = 1 << 20;
  throw Error(
      ExitCode::storage,
      fmt::format("{}: a checkpoint needs {:.1f} MiB and {:.1f} MiB are free; make room, keep "
                  "fewer (checkpoint.keep), or set checkpoint.directory",
                  path, static_cast<double>(bytes) / mib, static_cast<double>(free) / mib));
}

/// The old folder goes to `from`, or to `<to>.replaced` if the file system cannot exchange.
std::string replace_folder(const std::string& from, const std::string& to) {
  if (!exists(to)) {
    storage::rename(from, to);
    return "";
  }
  if (storage::exchange(from, to)) return from;
  std::string old = to + kReplaced;
  storage::rename(to, old);
  try {
    storage::rename(from, to);
  } catch (const Error&) {
    storage::rename(old, to);
    throw;
  }
  return old;
}

void publish(const std::string& directory, const std::string& temporary, const std::string& name,
             const Manifest& manifest) {
  const std::string folder = directory + "/" + name;
  const std::string text = to_text(manifest);
  (void)manifest_of_text(text, name);  // an unreadable manifest must not replace a folder
  storage::write_text(temporary + "/" + kManifestName, text);
  storage::sync_folder(temporary);
  const std::string latest = directory + "/" + kLatestName;
  const std::string latest_before = latest_text(latest);
  const std::string old = replace_folder(temporary, folder);
  try {
    storage::sync_folder(directory);
    replace_text(latest, name + "\n", kLatestSuffix);
  } catch (const Error&) {
    if (restore_latest(latest, latest_before)) move_back(temporary, folder, old);
    throw;
  }
  if (!old.empty()) remove_quietly(old);
  remove_quietly(folder + kReplaced);  // An interrupted replacement may have left it.
}

void save_checkpoint(comm::Peers& peers, const std::string& directory, const CheckpointMeta& meta,
                     std::span<const Slab> slabs, const SaveOptions& options) {
  const std::string name = step_name(meta.step);
  std::string temporary;  // rank 0 chooses it
  const bool first = peers.rank() == 0;
  const comm::OnFailure fails = failure(meta.step, {});
  const comm::OnFailure removes = failure(meta.step, [&] {
    if (!temporary.empty()) remove_quietly(temporary);
  });

  const auto sizes = comm::agree_and_gather(
      peers, [&] { return std::to_string(rank_bytes(slabs)); }, fails);
  const auto make_room = [&]() -> std::string {
    const auto sum = [](std::uint64_t total, const std::string& text) {
      return total + std::stoull(text);
    };
    if (!first) return "";
    fault::reach("checkpoint.prepare");
    return prepare_step(
        directory, name,
        std::accumulate(sizes.begin(), sizes.end(), bytes_of(meta.vocabulary), sum));
  };
  temporary = comm::agree_and_gather(peers, make_room, removes).front();
  const auto write_mine = [&] {
    fault::reach("checkpoint.write");
    const RankFileHead head{meta.step, peers.rank(), meta.layout};
    return table_text(write_rank_file(temporary, head, slabs, options));
  };
  const auto tables = comm::agree_and_gather(peers, write_mine, removes);
  const auto commit = [&] {
    if (!first) return;
    fault::reach("checkpoint.commit");
    Manifest manifest = merged_manifest(meta, tables, options.block_bytes);
    manifest.vocabulary = write_vocabulary(temporary, meta.vocabulary);
    publish(directory, temporary, name, manifest);
  };
  comm::agree(peers, commit, removes);
}

}  // namespace hyperslab::io
