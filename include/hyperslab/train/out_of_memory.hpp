// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

/// A change of one deck key, and the memory of the rank with it.
struct MemorySaving {
  std::string setting;  ///< "train.microbatch: 4"
  std::size_t planned_bytes = 0;
  std::int64_t saved_bytes = 0;  ///< positive
};

/// The changes that would save memory on a rank, the largest saving first: half the microbatch,
/// fused attention on a GPU, memory.recompute, parallel.zero, twice the tensor ranks, as far as the
/// deck's rules allow each alone. Each is a plan on `meta`, so this takes as long as a few setups
/// without memory.
[[nodiscard]] std::vector<MemorySaving> memory_savings(const Config& config,
                                                       const TrainerOptions& options,
                                                       int world_rank);

/// "this rank needs 9.0 GiB; what would help: memory.recompute: full (saves 4.2 GiB), ...", one
/// line for an error.
[[nodiscard]] std::string out_of_memory_advice(const Config& config, const TrainerOptions& options,
                                               int world_rank);

/// The error with what was asked and free, and the advice in place of general words.
[[nodiscard]] Error with_advice(const OutOfMemory& error, const Config& config,
                                const TrainerOptions& options, int world_rank);

/// Runs `work`; where memory runs out, the error says what would help.
template <class Work>
auto with_oom_advice(const Config& config, const TrainerOptions& options, int world_rank,
                     Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (const OutOfMemory& error) {
    throw with_advice(error, config, options, world_rank);
  }
}

}  // namespace hyperslab::train
