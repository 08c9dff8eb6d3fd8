// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/background_peers.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

class MemoryFolder;

/// The newest checkpoint of a run in the memory of its hosts, as files that outlive the job. Every
/// host holds the files of its own ranks and copies of the previous host's files, so that one
/// host of several may be lost. They lie in
/// <memory directory>/hyperslab-<user>-<id of the run>/<host>/step_<8 digits>/, look like those on
/// the disk, and are this user's alone.
class MemoryCheckpoints {
 public:
  /// The run that they belong to.
  struct Run {
    std::string id;           ///< read_run_id(); empty: nothing in memory belongs to it
    std::string checkpoints;  ///< its directory of them on the disk
  };
  /// Collective; `run` is equal on all ranks.
  MemoryCheckpoints(comm::Peers& peers, const std::string& directory, const Run& run);
  ~MemoryCheckpoints();
  MemoryCheckpoints(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints& operator=(const MemoryCheckpoints&) = delete;
  MemoryCheckpoints(MemoryCheckpoints&&) = delete;
  MemoryCheckpoints& operator=(MemoryCheckpoints&&) = delete;

  /// save_checkpoint() into memory, on a thread of every rank; older steps there are removed after
  /// it. A failure leaves the step before. Throws Error(storage).
  void save(comm::BackgroundPeers& peers, const CheckpointMeta& meta, std::span<const Slab> slabs,
            const SaveOptions& options) const;
  /// Which step is brought to the disk.
  struct Wanted {
    std::int64_t newer_than = -1;           ///< the newest step on the disk; -1: there is none
    std::optional<std::int64_t> only = {};  ///< absent: the newest that is whole
    std::span<const VocabularyFile> vocabulary = {};  ///< rank 0: to be kept beside it
  };
  /// If all files of such a step are in the memory of some hosts, writes it into `checkpoints`, a
  /// directory that all ranks see, and returns it. Every byte is checked; of a damaged file the
  /// next host's copy is taken. A step that is not whole is left out, with a warning. Collective;
  /// `wanted` is equal on all ranks but for the vocabulary.
  [[nodiscard]] std::optional<std::int64_t> bring_to_disk(comm::Peers& peers,
                                                          const std::string& checkpoints,
                                                          const Wanted& wanted) const;
  /// Removes the run's files from this rank's host; not collective.
  void clear() const;
  /// Removes from this rank's host the files of this user's runs that never came back, or that have
  /// newer checkpoints on the disk; not collective.
  void remove_forgotten() const;

  [[nodiscard]] const std::string& folder() const;  ///< this host's

 private:
  [[nodiscard]] bool leads() const { return leader_ == rank_; }
  void copy_to_next_host(comm::BackgroundPeers& peers, const std::string& folder,
                         const std::string& file) const;

  void make_room(std::uint64_t bytes, const std::string& temporary) const;
  void publish(const std::string& temporary, std::int64_t step, const std::string& manifest) const;

  int rank_;
  int leader_ = 0;  ///< the lowest rank of this rank's host
  std::string id_;
  std::unique_ptr<MemoryFolder> folder_;
  std::vector<int> held_ranks_;  ///< whose files this host holds
  std::vector<int> send_to_;     ///< by rank: the rank of the next host that keeps its copy, or -1
};

}  // namespace hyperslab::io
