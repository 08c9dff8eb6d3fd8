// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hyperslab/mesh/schedule.hpp"

namespace hyperslab::pipeline {

using mesh::name_of;
using mesh::Schedule;

/// A pass of one microbatch through one chunk, or an exchange of messages.
enum class ActionKind : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  exchange
};
enum class Payload : std::uint8_t { activation, gradient };

/// One message of a rank.
struct Transfer {
  bool sends = false;
  Payload payload = Payload::activation;
  int chunk = 0;  ///< chunk of this rank whose output or input it is
  int microbatch = 0;
  int slot = 0;  ///< slot of that chunk
  int peer = 0;  ///< pipeline rank
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// One step of a rank: it computes one pass of one microbatch through one chunk, or starts one
/// group of transfers.
struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;  ///< chunk, microbatch and slot are -1 for an exchange
  int microbatch = 0;
  int slot = 0;
  std::vector<Transfer> transfers;  ///< exchange: at least one, started together
};

/// A schedule as data. The model is cut into stages * virtual_stages global stages; chunk c of rank
/// r is global stage c * stages + r.
///
/// A slot of a chunk holds one microbatch's memory there, from the moment its activation receive
/// is posted (global stage 0: from its forward) to the end of its last backward part (forward_only:
/// of its forward). A receive of an activation is never posted before its slot is free in this
/// sense; the last microbatch's send may still be in progress then, see Worker in
/// executor.hpp.
struct Program {
  Schedule schedule = Schedule::gpipe;
  int stages = 1;  ///< ranks of the pipeline group
  int virtual_stages = 1;
  int microbatches = 1;
  std::vector<std::vector<Action>> ranks;  ///< actions of each rank, in order
  std::vector<std::vector<int>> slots;     ///< [rank][chunk]

  [[nodiscard]] int global_stages() const { return stages * virtual_stages; }
  [[nodiscard]] int global_stage(int rank, int chunk) const { return chunk * stages + rank; }
  [[nodiscard]] bool is_first(int rank, int chunk) const { return global_stage(rank, chunk) == 0; }
  [[nodiscard]] bool is_last(int rank, int chunk) const {
    return global_stage(rank, chunk) == global_stages() - 1;
  }
  [[nodiscard]] int slot_count(int rank, int chunk) const {
    return slots[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)];
  }
};

/// The program of every rank. Microbatches go forward and backward in ascending order through every
/// chunk; slots are rings. With m microbatches, rank s of p needs
///   gpipe         m slots,
///   1f1b          min(m, p - s),
///   interleaved   no more than the in-flight microbatches of its schedule, counted per chunk,
///   zero_bubble   at most min(m, p) on every rank (as rank 0 of 1f1b), counted until the
///                 weight gradient is done,
///   forward_only  min(m, 2) per chunk.
/// A simulation with unit costs (forward 1, backward 2; zero_bubble: 1 each) decides between which
/// passes the transfers go. A transfer belongs to the instant at which its producer ends or, if
/// that is later, its slot becomes free. All transfers of a rank at one instant are one exchange;
/// exchanges of a rank are in the order of their instants, which is one global order, so that
/// in-order communication queues cannot deadlock even if a group ends only when every peer has
/// started its own. An exchange comes right after the pass that ends at its instant, else before
/// the pass that runs then. docs/architecture.md goes through an example. Throws Error(usage)
/// unless 1 <= stages, virtual_stages, microbatches; virtual_stages must be 1 if stages is 1, and
/// with gpipe, 1f1b and zero_bubble; interleaved with virtual_stages > 1 needs a multiple of
/// `stages` microbatches. (interleaved with virtual_stages 1 is 1f1b.)
[[nodiscard]] Program make_program(Schedule schedule, int stages, int virtual_stages,
                                   int microbatches);

}  // namespace hyperslab::pipeline
