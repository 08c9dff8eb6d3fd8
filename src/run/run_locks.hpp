// SPDX-License-Identifier: Apache-2.0
// The directories that a run holds against other runs.
#pragma once

#include <memory>

#include "hyperslab/run/run_lock.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// Rank 0 holds the run's directory, and its checkpoints' directory if that is elsewhere.
class RunLocks {
 public:
  /// Collective. Throws Error(storage) if another process holds one of them.
  explicit RunLocks(const Start& start);

  /// Rank 0: the directory of checkpoints is new, its lock went away with the old one.
  void lock_checkpoints_again() { lock_checkpoints(); }
  /// Rank 0: the start went well, and the files of locking stay.
  void keep();
  /// Rank 0, before a save: if someone removed the directory that the checkpoints go to, makes it
  /// and its lock again, with a warning, and returns true. Throws Error(storage) if another process
  /// holds it by then.
  [[nodiscard]] bool renew();

 private:
  void lock_run();
  void lock_checkpoints();

  const Start& start_;
  std::unique_ptr<RunLock> run_;  // held by rank 0; released last
  std::unique_ptr<RunLock> checkpoints_;
};

}  // namespace hyperslab::run
