// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints: during training from a snapshot, or at once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "hyperslab/comm/background_peers.hpp"
#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/stream.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/io/memory_checkpoints.hpp"

namespace hyperslab::run {

/// The outcome of a save, alike on all ranks.
struct SaveOutcome {
  std::int64_t step = 0;
  bool in_memory = false;
  std::string not_finite;  ///< the first tensor with values that are not; nothing was written
  std::string failure;     ///< why nothing was written; empty: it was, or not_finite
  double seconds = 0;      ///< from the snapshot to the end
  [[nodiscard]] bool is_saved() const { return not_finite.empty() && failure.empty(); }
};

/// One checkpoint to write.
struct SaveJob {
  io::CheckpointMeta meta;
  std::vector<io::Slab> slabs;
  io::SaveOptions options;
  io::KeepPolicy keep;  ///< the checkpoints of earlier steps that stay after it
  /// It goes into the memory of the hosts, where it replaces the one before; null: to the disk.
  const io::MemoryCheckpoints* memory = nullptr;
};

/// Writes at most one checkpoint at a time on a thread of every rank, while training goes on. The
/// threads agree through BackgroundPeers, which the main thread moves in progress().
class CheckpointWriter {
 public:
  /// Collective. `directory`: of checkpoints.
  CheckpointWriter(comm::World& world, std::string directory);
  /// Waits for this rank's thread. A step that it has not published is gone.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  CheckpointWriter(CheckpointWriter&&) = delete;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;

  /// Writes it now, on this thread and to the disk, and returns when all ranks have.
  [[nodiscard]] SaveOutcome write(const SaveJob& job);
  /// Writes it on the thread, once `ready` is complete; no other may be running.
  void start(SaveJob job, const Event& ready);
  [[nodiscard]] bool is_busy() const { return job_ != nullptr; }
  /// The main thread's work for the threads of all ranks; never blocks.
  void progress();
  /// The outcome once the thread is done; nothing while it is not, or if it has nothing to do.
  [[nodiscard]] std::optional<SaveOutcome> poll();
  /// Waits for the thread and returns its outcome; nothing if it has nothing to do.
  [[nodiscard]] std::optional<SaveOutcome> finish();

 private:
  [[nodiscard]] SaveOutcome attempt(comm::Peers& peers, const SaveJob& job) const;
  void start_thread();

  comm::World& world_;
  std::string directory_;
  std::unique_ptr<comm::BackgroundPeers> peers_;
  std::unique_ptr<SaveJob> job_;  ///< in progress
  Event ready_;
  double started_ = 0;
  std::thread thread_;
  SaveOutcome outcome_;  ///< written by the thread, read after is_done_
  std::atomic<bool> is_done_ = false;
};

}  // namespace hyperslab::run
