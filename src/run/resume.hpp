// SPDX-License-Identifier: Apache-2.0
// The checkpoint that a start goes on from, and the settings it must share.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/io/memory_checkpoints.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"
#include "run_data.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// The point from which a start resumes.
struct ResumePoint {
  std::int64_t first_step = 1;     ///< the first of this start
  double earlier_seconds = 0;      ///< time of training, over all earlier starts
  std::string spikes;              ///< Spikes::checkpoint_text(); empty: none
  ops::AlgorithmCache algorithms;  ///< on rank 0: the algorithms that the checkpoint holds
};

/// Loads the checkpoint that the command line or the deck chooses into the trainer: the newest
/// complete one, a step, or none; without one the weights of checkpoint.initial, if there are any.
/// A newer one in the `memory` of the hosts, which may be null, is written to the disk first; steps
/// in memory beyond the chosen one are removed. Collective. Throws Error(checkpoint), the same on
/// all ranks.
[[nodiscard]] ResumePoint resume(const Start& start, const RunData& data, train::Trainer& trainer,
                                 const io::MemoryCheckpoints* memory);

/// Rank 0: moves the steps of an earlier run away, so that a fresh start neither mixes with them
/// nor loses them. Returns whether there were any, so that the directory is new.
[[nodiscard]] bool set_earlier_checkpoints_aside(const Start& start);

}  // namespace hyperslab::run
