// SPDX-License-Identifier: Apache-2.0
#include "run_locks.hpp"

#include <fmt/format.h>

#include "hyperslab/core/log.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::run {

RunLocks::RunLocks(const Start& start) : start_(start) {
  comm::agree(start_.world, [&] {
    if (!start_.is_first()) return;
    const train::RunConfig& run = start_.config.run;
    lock_run();
    if (run_->is_held()) remove_stale_probes(run.directory);
    // Another run can name the directory of checkpoints alone, wherever it is.
    if (!is_inside(start_.checkpoints, run.directory) ||
        !is_inside(run.directory, start_.checkpoints)) {
      lock_checkpoints();
    }
    if (checkpoints_ && checkpoints_->is_held()) remove_stale_probes(start_.checkpoints);
  });
}

void RunLocks::lock_run() {
  const train::RunConfig& run = start_.config.run;
  const bool by_name = run.directory == "runs/" + run.name;
  run_ = std::make_unique<RunLock>(run.directory, start_.world.host(),
                                   by_name ? "run.name or run.directory" : "run.directory");
}

void RunLocks::lock_checkpoints() {
  checkpoints_ =
      std::make_unique<RunLock>(start_.checkpoints, start_.world.host(), "checkpoint.directory");
}

void RunLocks::keep() {
  run_->keep();
  if (checkpoints_) checkpoints_->keep();
}

bool RunLocks::renew() {
  const bool holds_run = is_inside(start_.checkpoints, start_.config.run.directory);
  const bool run_is_gone = holds_run && !run_->is_in_place();
  const bool checkpoints_are_gone = checkpoints_ && !checkpoints_->is_in_place();
  if (!run_is_gone && !checkpoints_are_gone) return false;
  log::warn(fmt::format("{}: was removed, or its lock was, while the run goes on; it is made again",
                        checkpoints_are_gone ? start_.checkpoints : start_.config.run.directory));
  if (run_is_gone) lock_run();
  if (checkpoints_are_gone) lock_checkpoints();
  keep();
  return true;
}

}  // namespace hyperslab::run
