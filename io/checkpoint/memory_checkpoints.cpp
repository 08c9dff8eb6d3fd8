// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/memory_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "checkpoint/memory_folder.hpp"
#include "checkpoint/memory_steps.hpp"
#include "checkpoint/save.hpp"
#include "checkpoint/steps.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;
/// Ranks of each host, hosts in the order of their lowest ranks.
std::vector<std::vector<int>> ranks_by_host(const std::vector<std::string>& hosts) {
  std::vector<std::vector<int>> found;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto is_here = [&](const std::vector<int>& ranks) {
      return hosts[static_cast<std::size_t>(ranks.front())] == hosts[rank];
    };
    auto host = std::ranges::find_if(found, is_here);
    if (host == found.end()) host = found.insert(found.end(), std::vector<int>{});
    host->push_back(static_cast<int>(rank));
  }
  return found;
}

/// By rank: the rank of the next host that keeps a copy of its file; -1 on a single host.
std::vector<int> keepers(const std::vector<std::vector<int>>& hosts, std::size_t ranks) {
  std::vector<int> keeper(ranks, -1);
  if (hosts.size() < 2) return keeper;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const std::vector<int>& next = hosts[(h + 1) % hosts.size()];
    for (std::size_t i = 0; i < hosts[h].size(); ++i) {
      keeper[static_cast<std::size_t>(hosts[h][i])] = next[i % next.size()];
    }
  }
  return keeper;
}

std::string file_of(int rank) { return fmt::format("rank_{:05d}.h5", rank); }

void require_room(const std::string& folder, std::uint64_t bytes) {
  const std::uint64_t free = storage::free_bytes(folder);
  if (free >= bytes) return;
  constexpr double mib = 1 << 20;
  throw Error(
      ExitCode::storage,
      fmt::format("{}: a checkpoint in memory needs {:.1f} MiB beside the one before and "
                  "{:.1f} MiB are free; set checkpoint.memory_directory, or "
                  "checkpoint.memory_every to 0",
                  folder, static_cast<double>(bytes) / mib, static_cast<double>(free) / mib));
}

}  // namespace

MemoryCheckpoints::MemoryCheckpoints(comm::Peers& peers, const std::string& directory,
                                     const Run& run)
    : rank_(peers.rank()),
      id_(run.id),
      folder_(std::make_unique<MemoryFolder>(directory, run.id, peers.host(), run.checkpoints)) {
  const std::vector<std::string> hosts = peers.all_gather(peers.host());
  const auto by_host = ranks_by_host(hosts);
  send_to_ = keepers(by_host, hosts.size());
  for (const std::vector<int>& ranks : by_host) {
    if (std::ranges::find(ranks, rank_) == ranks.end()) continue;
    leader_ = ranks.front();
    held_ranks_ = ranks;
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      const bool is_kept = std::ranges::find(ranks, send_to_[rank]) != ranks.end();
      if (is_kept) held_ranks_.push_back(static_cast<int>(rank));
    }
  }
}

MemoryCheckpoints::~MemoryCheckpoints() = default;

const std::string& MemoryCheckpoints::folder() const { return folder_->path(); }

/// For a step that is written under the name `temporary`.
void MemoryCheckpoints::make_room(std::uint64_t bytes, const std::string& temporary) const {
  folder_->hold();
  remove_stale(folder());
  require_room(folder(), bytes);
  make_private_folder(temporary);
}

/// A step of that number, which may be damaged, is replaced; older ones go.
void MemoryCheckpoints::publish(const std::string& temporary, std::int64_t step,
                                const std::string& manifest) const {
  storage::write_text(temporary + "/" + kManifestName, manifest);
  make_private_file(temporary + "/" + kManifestName);
  const std::string old = replace_folder(temporary, folder() + "/" + step_name(step));
  if (!old.empty()) remove_quietly(old);
}

/// Sends this rank's file to its keeper and writes those that it keeps itself.
void MemoryCheckpoints::copy_to_next_host(comm::BackgroundPeers& peers, const std::string& folder,
                                          const std::string& file) const {
  const auto text = [&]() -> std::string {
    return std::to_string(fs::file_size(folder + "/" + file));
  };
  const std::vector<std::string> sizes = comm::agree_and_gather(peers, text);
  std::vector<comm::BackgroundPeers::Parcel> sends;
  std::vector<comm::BackgroundPeers::Parcel> receives;
  std::vector<std::unique_ptr<char[]>> memory;  // NOLINT: no zeros first
  const auto room_for = [&](int rank) {
    const std::size_t bytes = std::stoull(sizes[static_cast<std::size_t>(rank)]);
    memory.emplace_back(new char[bytes]);  // NOLINT
    return bytes;
  };
  const int keeper = send_to_[static_cast<std::size_t>(rank_)];
  const auto read_mine = [&] {
    if (keeper < 0) return;
    const std::size_t bytes = room_for(rank_);
    const storage::File mine = storage::File::open(folder + "/" + file);
    require(mine.read_at(0, memory.back().get(), bytes) == bytes, "a file in memory is too short");
    sends.push_back({keeper, memory.back().get(), bytes});
  };
  comm::agree(peers, read_mine);
  for (int rank = 0; rank < peers.size(); ++rank) {
    if (send_to_[static_cast<std::size_t>(rank)] != rank_) continue;
    const std::size_t bytes = room_for(rank);
    receives.push_back({rank, memory.back().get(), bytes});
  }
  peers.exchange(sends, receives);
  comm::agree(peers, [&] {
    for (const comm::BackgroundPeers::Parcel& parcel : receives) {
      storage::File copy = storage::File::create(folder + "/" + file_of(parcel.rank));
      copy.write_at(0, parcel.data, parcel.bytes);
      copy.close();
      make_private_file(folder + "/" + file_of(parcel.rank));
    }
  });
}

void MemoryCheckpoints::save(comm::BackgroundPeers& peers, const CheckpointMeta& meta,
                             std::span<const Slab> slabs, const SaveOptions& options) const {
  const std::string temporary = folder() + "/" + step_name(meta.step) + kTemporary;
  try {
    const auto sizes =
        comm::agree_and_gather(peers, [&] { return std::to_string(rank_bytes(slabs)); });
    comm::agree(peers, [&] {
      if (!leads()) return;
      std::uint64_t bytes = 0;
      for (const int rank : held_ranks_)
        bytes += std::stoull(sizes[static_cast<std::size_t>(rank)]);
      make_room(bytes, temporary);
    });
    const RankFileHead head{meta.step, rank_, meta.layout};
    const auto tables = comm::agree_and_gather(peers, [&] {
      folder_->require_private();
      const Manifest mine = write_rank_file(temporary, head, slabs, options);
      make_private_file(temporary + "/" + file_of(rank_));
      return table_text(mine);
    });
    copy_to_next_host(peers, temporary, file_of(rank_));
    const auto texts = comm::agree_and_gather(peers, [&]() -> std::string {
      return rank_ == 0 ? to_text(merged_manifest(meta, tables, options.block_bytes)) : "";
    });
    comm::agree(peers, [&] {
      if (leads()) publish(temporary, meta.step, texts.front());
    });
  } catch (const Error&) {
    if (leads()) remove_quietly(temporary);
    throw;
  }
  if (!leads()) return;
  for (const StepFolder& step : find_steps(folder())) {
    if (step.step != meta.step) remove_quietly(step.path);
  }
}

std::optional<std::int64_t> MemoryCheckpoints::bring_to_disk(comm::Peers& peers,
                                                             const std::string& checkpoints,
                                                             const Wanted& wanted) const {
  if (id_.empty()) return std::nullopt;
  const bool reads = leads() && folder_->can_be_read();
  const auto texts = peers.all_gather(reads ? text_of_held(folder()) : "");
  for (const std::vector<HeldStep>& holders : steps_of_texts(texts)) {
    const std::int64_t step = holders.front().step;
    if (step <= wanted.newer_than || (wanted.only && step != *wanted.only)) continue;
    try {
      bring_step(peers, {folder(), checkpoints, holders, wanted.vocabulary});
      return step;
    } catch (const Error& error) {
      if (rank_ == 0)
        log::warn(fmt::format("step {} in memory is left out: {}", step, error.what()));
    }
  }
  return std::nullopt;
}

void MemoryCheckpoints::clear() const {
  if (leads()) folder_->remove();
}

void MemoryCheckpoints::remove_forgotten() const {
  if (leads()) folder_->remove_forgotten();
}

}  // namespace hyperslab::io
