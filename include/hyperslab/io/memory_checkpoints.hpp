// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/background_peers.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// The newest checkpoint of a run in the memory of its hosts, as files that outlive the job. Every
/// host holds the files of its own ranks and copies of those of the host before it, so that one
/// host of several may be lost. They lie in
/// <memory directory>/hyperslab-<user>-<number of the run's directory>/<host>/step_<8 digits>/,
/// and look like those on the disk.
class MemoryCheckpoints {
 public:
  /// Collective. `run`: the directory that the run is known by. Folders in `directory` that no one
  /// has written to for a day are removed: their jobs never came back.
  MemoryCheckpoints(comm::Peers& peers, const std::string& directory, const std::string& run);

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
  /// directory that all ranks see, and returns it. Every byte is checked. What is damaged or not
  /// whole is left out, with a warning. Collective; `wanted` is equal on all ranks but for the
  /// vocabulary.
  [[nodiscard]] std::optional<std::int64_t> bring_to_disk(comm::Peers& peers,
                                                          const std::string& checkpoints,
                                                          const Wanted& wanted) const;
  /// Removes what this rank's host holds of the run; not collective.
  void clear() const;

  [[nodiscard]] const std::string& folder() const { return folder_; }  ///< of this host

  /// What a host holds of a step.
  struct Held {
    std::int64_t step = 0;
    int holder = 0;  ///< the host's lowest rank
    std::vector<std::string> files;
  };

 private:
  [[nodiscard]] bool leads() const { return leader_ == rank_; }
  void bring_step(comm::Peers& peers, const std::string& checkpoints, std::span<const Held> holders,
                  std::span<const VocabularyFile> vocabulary) const;
  void copy_to_next_host(comm::BackgroundPeers& peers, const std::string& folder,
                         const std::string& file) const;

  int rank_;
  int leader_ = 0;  ///< the lowest rank of this rank's host
  std::string folder_;
  std::vector<int> held_ranks_;  ///< whose files this host holds
  std::vector<int> send_to_;     ///< by rank: the rank of the next host that keeps its copy, or -1
};

}  // namespace hyperslab::io
