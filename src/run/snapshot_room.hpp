// SPDX-License-Identifier: Apache-2.0
// Checks that hosts have memory for copies of the state that is saved during training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "hyperslab/train/trainer.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// The memory of a host that checkpoints during training take.
struct SnapshotRoom {
  std::string host;
  std::int64_t bytes = 0;  ///< size of a copy of a rank's state, the most of all ranks
  int ranks = 1;           ///< ranks on the host
  int copies = 1;          ///< copies of each rank's state at once
  std::int64_t free_bytes = 0;
};
/// Empty if half of the free memory is enough, else a text with the host and its memory.
[[nodiscard]] std::string shortage(const SnapshotRoom& room);

/// The number of copies of a rank's state in the memory of a host at once: the copy that is
/// written, and with checkpoint.memory_every the newest checkpoint in memory beside the one before,
/// of its own ranks and, of several hosts, of another host's.
[[nodiscard]] int copies_in_memory(const io::CheckpointConfig& config, bool has_other_hosts);

/// The buffer of this rank if its run saves on the way during training; null if the deck does not
/// want that, or, with a warning, if a host has no room. Collective, alike on all ranks.
[[nodiscard]] std::unique_ptr<train::SnapshotBuffer> make_snapshot_buffer(const Start& start,
                                                                          train::Trainer& trainer);

}  // namespace hyperslab::run
