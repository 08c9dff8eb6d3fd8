// SPDX-License-Identifier: Apache-2.0
#include "run_locks.hpp"

#include "hyperslab/train/setup.hpp"

namespace hyperslab::run {

RunLocks::RunLocks(const Start& start) : start_(start) {
  comm::agree(start_.world, [&] {
    if (!start_.is_first()) return;
    const train::RunConfig& run = start_.config.run;
    const bool by_name = run.directory == "runs/" + run.name;
    run_ = std::make_unique<RunLock>(run.directory, start_.world.host(),
                                     by_name ? "run.name or run.directory" : "run.directory");
    if (run_->is_held()) remove_stale_probes(run.directory);
    // Another run can name the directory of checkpoints alone, wherever it is.
    if (!is_inside(start_.checkpoints, run.directory) ||
        !is_inside(run.directory, start_.checkpoints)) {
      lock_checkpoints();
    }
    if (checkpoints_ && checkpoints_->is_held()) remove_stale_probes(start_.checkpoints);
  });
}

void RunLocks::lock_checkpoints() {
  checkpoints_ =
      std::make_unique<RunLock>(start_.checkpoints, start_.world.host(), "checkpoint.directory");
}

void RunLocks::keep() {
  run_->keep();
  if (checkpoints_) checkpoints_->keep();
}

}  // namespace hyperslab::run
