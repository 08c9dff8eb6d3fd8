// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/comm/memory_limit.hpp"
#include "hyperslab/plan/plan.hpp"

namespace hyperslab::plan {

/// A function that is true if the deck's rules allow a changed configuration. These rules are above
/// this module: whoever read the deck hands them down. Absent: nothing is known to be
/// allowed.
using IsLegal = std::function<bool(const train::Config&)>;

/// A change of one deck key, and the memory of the rank with it.
struct MemorySaving {
  std::string setting;  ///< "train.microbatch: 4"
  std::size_t planned_bytes = 0;
  std::int64_t saved_bytes = 0;  ///< positive
};

/// The changes that would save memory on a rank, the largest saving first: half the microbatch,
/// fused attention on a GPU, memory.recompute, memory.mlp_rows, parallel.zero, AdamW's moments in
/// bf16, state on the host of a GPU, twice the tensor ranks, as far as `is_legal` allows each
/// alone. Each is a plan on `meta`, so this takes as long as a few setups without memory.
[[nodiscard]] std::vector<MemorySaving> memory_savings(const train::Config& config,
                                                       const train::TrainerOptions& options,
                                                       int world_rank, const IsLegal& is_legal);

/// "activations 51.20 GiB, optimizer 3.00 GiB and parameters 1.00 GiB": the three largest parts.
[[nodiscard]] std::string largest_parts(const model::MemoryPlan& memory);

/// "what would help: memory.recompute: full (saves 4.20 GiB, fits), ...", for one line of an error.
/// `room_bytes`: what the rank has. If no change alone fits, the changes that fit together follow,
/// then a shorter context that does, or the line says that nothing is enough.
[[nodiscard]] std::string memory_advice(const train::Config& config,
                                        const train::TrainerOptions& options, int world_rank,
                                        const IsLegal& is_legal, std::size_t room_bytes);

/// "2 ranks on host n1 need 51.20 GiB together, and 20.90 GiB are free".
[[nodiscard]] std::string describe(const comm::MemoryShortage& shortage);

/// The part of the line that follows: what the fullest rank, whose plan is `memory`, needs, and
/// memory_advice(); on GPUs how much page-locked memory each rank takes.
[[nodiscard]] std::string host_advice(const train::Config& config,
                                      const train::TrainerOptions& options,
                                      const model::MemoryPlan& memory, const IsLegal& is_legal,
                                      const comm::MemoryShortage& shortage);

/// Throws Error(device) on all ranks if those of a host, or of a control group, together need more
/// of the host's memory than is free: CPU ranks all that is planned, ranks of GPUs page-locked
/// memory for state. The system would give addresses for it, and kill a rank that writes there.
/// Collective; to be called before any rank takes memory.
void require_host_memory(comm::Peers& peers, const train::Config& config,
                         const train::TrainerOptions& options, const model::MemoryPlan& memory,
                         const IsLegal& is_legal);
/// This one is told the limits that the rank is under.
void require_host_memory(comm::Peers& peers, const train::Config& config,
                         const train::TrainerOptions& options, const model::MemoryPlan& memory,
                         const IsLegal& is_legal, const std::vector<comm::MemoryLimit>& limits);

/// A trainer on options.device with arenas of exactly the planned sizes. If memory runs out, the
/// error names the bytes asked for, the bytes free, the largest parts of the plan, and ways to save
/// memory.
[[nodiscard]] std::unique_ptr<train::Trainer> make_trainer(const train::Config& config,
                                                           const mesh::Mesh& mesh,
                                                           const train::TrainerOptions& options,
                                                           const model::MemoryPlan& memory,
                                                           const IsLegal& is_legal = {});

}  // namespace hyperslab::plan
