// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/memory_checkpoints.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>

#include "checkpoint/blocks.hpp"
#include "checkpoint/save.hpp"
#include "checkpoint/steps.hpp"
#include "checkpoint/vocabulary.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;
constexpr auto kForgotten = std::chrono::hours(24);
constexpr std::string_view kPrefix = "hyperslab-";

/// FNV-1a: a number for a path that is the same in every process.
std::uint64_t number_of(const std::string& text) {
  std::uint64_t number = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    number = (number ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return number;
}

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

/// Folders of this user's runs that were given up.
void remove_forgotten(const std::string& directory, const std::string& prefix) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::error_code ignored;
    fs::file_time_type newest = fs::last_write_time(it->path(), ignored);
    for (const auto& host : fs::directory_iterator(it->path(), ignored)) {
      newest = std::max(newest, fs::last_write_time(host.path(), ignored));
    }
    if (now - newest < kForgotten) continue;
    fs::remove_all(it->path(), ignored);
    log::info(fmt::format("removed checkpoints in memory that were not used for a day: {}",
                          it->path().string()));
  }
}

using Held = MemoryCheckpoints::Held;

/// "step file file\n" for every step in the folder, with the files that have their size.
std::string text_of_held(const std::string& folder) {
  std::string text;
  for (const StepFolder& found : find_steps(folder)) {
    try {
      const std::string path = found.path + "/" + kManifestName;
      const Manifest manifest = manifest_of_text(storage::read_text(path), path);
      text += std::to_string(found.step);
      for (const CheckpointReader::FileEntry& file : manifest.files) {
        std::error_code error;
        const auto bytes = fs::file_size(found.path + "/" + file.name, error);
        if (!error && bytes == file.bytes) text += " " + file.name;
      }
      text += "\n";
    } catch (const Error& error) {
      log::warn(fmt::format("a checkpoint in memory is left out: {}", error.what()));
    }
  }
  return text;
}

std::vector<Held> held_of_texts(const std::vector<std::string>& texts) {
  std::vector<Held> all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      Held held;
      held.holder = static_cast<int>(rank);
      words >> held.step;
      for (std::string file; words >> file;) held.files.push_back(file);
      all.push_back(std::move(held));
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Held::step);
  return all;
}

/// Copies a file of a step and checks its bytes against the manifest. Throws Error(checkpoint) and
/// Error(storage).
void copy_checked(const std::string& from, const std::string& to, const Manifest& manifest,
                  const CheckpointReader::FileEntry& entry) {
  constexpr std::size_t kAtOnce = std::size_t{16} << 20;
  const storage::File source = storage::File::open(from + "/" + entry.name);
  storage::File target = storage::File::create(to + "/" + entry.name);
  std::vector<char> buffer(kAtOnce);
  for (std::uint64_t offset = 0; offset < entry.bytes;) {
    const std::size_t wanted = std::min<std::uint64_t>(kAtOnce, entry.bytes - offset);
    const std::size_t bytes = source.read_at(offset, buffer.data(), wanted);
    if (bytes == 0) throw Error(ExitCode::checkpoint, from + "/" + entry.name + " was shortened");
    target.write_at(offset, buffer.data(), bytes);
    offset += bytes;
  }
  target.sync();
  target.close();
  std::vector<StoredBlock> blocks;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const CheckpointReader::Piece& piece : tensor.pieces) {
      if (piece.file != entry.name) continue;
      for (std::size_t k = 0; k < piece.crc32c.size(); ++k) {
        blocks.push_back(stored_block(name, tensor.dtype, piece, k, manifest.block_bytes));
      }
    }
  }
  for (const CheckpointReader::Structure& part : entry.structure) {
    blocks.push_back({fmt::format("structure of {} at byte {}", entry.name, part.offset),
                      &entry.name, part.offset, part.bytes, part.crc32c, 0});
  }
  read_blocks(to, std::move(blocks),
              [&](const StoredBlock&, const char* bytes, const std::string& problem) {
                if (bytes == nullptr) throw Error(ExitCode::checkpoint, from + ": " + problem);
              });
}

/// Who brings which file of a step: of several holders the lowest.
int holder_of(std::span<const Held> of_step, const std::string& file) {
  for (const Held& held : of_step) {
    if (std::ranges::find(held.files, file) != held.files.end()) return held.holder;
  }
  return -1;
}

}  // namespace

MemoryCheckpoints::MemoryCheckpoints(comm::Peers& peers, const std::string& directory,
                                     const std::string& run)
    : rank_(peers.rank()) {
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
  const std::string prefix = fmt::format("{}{}-", kPrefix, ::getuid());
  const std::string path = fs::weakly_canonical(run).string();
  folder_ = fmt::format("{}/{}{:016x}/{}", directory, prefix, number_of(path), peers.host());
  if (leads()) remove_forgotten(directory, prefix);
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
    }
  });
}

void MemoryCheckpoints::save(comm::BackgroundPeers& peers, const CheckpointMeta& meta,
                             std::span<const Slab> slabs, const SaveOptions& options) const {
  const std::string name = step_name(meta.step);
  const std::string temporary = folder_ + "/" + name + kTemporary;
  try {
    const auto sizes =
        comm::agree_and_gather(peers, [&] { return std::to_string(rank_bytes(slabs)); });
    comm::agree(peers, [&] {
      if (!leads()) return;
      storage::make_folder(folder_);
      remove_stale(folder_);
      std::uint64_t bytes = 0;
      for (const int rank : held_ranks_)
        bytes += std::stoull(sizes[static_cast<std::size_t>(rank)]);
      require_room(folder_, bytes);
      storage::make_folder(temporary);
    });
    const RankFileHead head{meta.step, rank_, meta.layout};
    const auto tables = comm::agree_and_gather(
        peers, [&] { return table_text(write_rank_file(temporary, head, slabs, options)); });
    copy_to_next_host(peers, temporary, file_of(rank_));
    const auto texts = comm::agree_and_gather(peers, [&]() -> std::string {
      return rank_ == 0 ? to_text(merged_manifest(meta, tables, options.block_bytes)) : "";
    });
    comm::agree(peers, [&] {
      if (!leads()) return;
      storage::write_text(temporary + "/" + kManifestName, texts.front());
      storage::rename(temporary, folder_ + "/" + name);
    });
  } catch (const Error&) {
    if (leads()) remove_quietly(temporary);
    throw;
  }
  if (!leads()) return;
  for (const StepFolder& step : find_steps(folder_)) {
    if (step.step != meta.step) remove_quietly(step.path);
  }
}

/// Writes one step of the memory of `holders` to the disk.
void MemoryCheckpoints::bring_step(comm::Peers& peers, const std::string& checkpoints,
                                   std::span<const Held> holders,
                                   std::span<const VocabularyFile> vocabulary) const {
  const std::string name = step_name(holders.front().step);
  const std::string mine = folder_ + "/" + name;
  const auto texts = comm::agree_and_gather(peers, [&]() -> std::string {
    const bool tells = holders.front().holder == rank_;
    return tells ? storage::read_text(mine + "/" + kManifestName) : "";
  });
  Manifest manifest =
      manifest_of_text(texts[static_cast<std::size_t>(holders.front().holder)], name);
  for (const CheckpointReader::FileEntry& file : manifest.files) {
    if (holder_of(holders, file.name) >= 0) continue;
    throw Error(ExitCode::checkpoint, file.name + " is in the memory of no host").on_all_ranks();
  }
  std::string temporary;  // rank 0 chooses it
  const comm::OnFailure removes = {[&] {
    if (!temporary.empty()) remove_quietly(temporary);
  }};
  const auto make_room = [&]() -> std::string {
    std::uint64_t bytes = bytes_of(vocabulary);
    for (const CheckpointReader::FileEntry& file : manifest.files) bytes += file.bytes;
    return rank_ == 0 ? prepare_step(checkpoints, name, bytes) : "";
  };
  temporary = comm::agree_and_gather(peers, make_room).front();
  const auto copy_mine = [&] {
    for (const CheckpointReader::FileEntry& file : manifest.files) {
      if (holder_of(holders, file.name) == rank_) copy_checked(mine, temporary, manifest, file);
    }
    storage::sync_folder(temporary);
  };
  comm::agree(peers, copy_mine, removes);
  const auto commit = [&] {
    if (rank_ != 0) return;
    manifest.vocabulary = write_vocabulary(temporary, vocabulary);
    publish(checkpoints, temporary, name, manifest);
  };
  comm::agree(peers, commit, removes);
}

std::optional<std::int64_t> MemoryCheckpoints::bring_to_disk(comm::Peers& peers,
                                                             const std::string& checkpoints,
                                                             const Wanted& wanted) const {
  const auto held = held_of_texts(peers.all_gather(leads() ? text_of_held(folder_) : ""));
  for (auto first = held.begin(); first != held.end();) {
    const auto last = std::find_if(first, held.end(),
                                   [&](const Held& other) { return other.step != first->step; });
    const std::vector<Held> of_step(first, last);
    first = last;
    const std::int64_t step = of_step.front().step;
    if (step <= wanted.newer_than || (wanted.only && step != *wanted.only)) continue;
    try {
      bring_step(peers, checkpoints, of_step, wanted.vocabulary);
      return step;
    } catch (const Error& error) {
      if (rank_ == 0)
        log::warn(fmt::format("step {} in memory is left out: {}", step, error.what()));
    }
  }
  return std::nullopt;
}

void MemoryCheckpoints::clear() const {
  if (!leads()) return;
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  fs::remove(fs::path(folder_).parent_path(), ignored);  // unless another host's folder is there
}

}  // namespace hyperslab::io
