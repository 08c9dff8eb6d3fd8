// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::pipeline {

/// Seconds of one microbatch in one chunk; a whole backward takes both parts.
struct Costs {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;  ///< from the moment both ends have started it
  [[nodiscard]] double of(ActionKind kind) const;
};

/// When an action ran; an exchange from its start on its queue to its completion.
struct Interval {
  double begin = 0;
  double end = 0;
};

/// A program run in virtual time. Every rank computes in the order of its program; its exchanges
/// run strictly in order on one queue beside it, each after the computations before it; an exchange
/// completes when every peer has started the matching one. A computation waits only for its
/// receives, and a forward for the sends of the microbatch that had its slot before.
struct Simulation {
  double seconds = 0;
  std::vector<double> busy;                    ///< seconds per rank
  std::vector<double> idle;                    ///< seconds - busy
  std::vector<std::vector<Interval>> actions;  ///< [rank][action]
  std::vector<std::vector<int>> peak_slots;    ///< [rank][chunk], most in use at once

  /// Idle over busy seconds, all ranks together: the bubble relative to the ideal time.
  [[nodiscard]] double idle_fraction() const;
};

/// The faults of a program, a line each; empty if there are none. It checks: every forward and
/// backward exactly once, in an order that its data allow; every transfer after its producer and
/// before its consumer; sends and receives of every pair of ranks in one order; no slot used twice
/// at once; no deadlock if a group completes only when every peer has started the matching one.
[[nodiscard]] std::vector<std::string> problems(const Program& program);

/// Throws an internal Error with the first of problems().
void validate(const Program& program);

/// Throws an internal Error if the program cannot come to its end.
[[nodiscard]] Simulation simulate(const Program& program, const Costs& costs);

/// Idle over busy time if transfers take none: (p - 1) / m for gpipe and 1f1b, (p - 1) / (v m)
/// for interleaved, (p - 1) / (3 m) for zero_bubble with three passes of equal cost and m >= 2 p.
/// forward_only: (p - 1) / (v m) if v is 1 or m a multiple of p.
[[nodiscard]] double ideal_idle_fraction(Schedule schedule, int stages, int virtual_stages,
                                         int microbatches);

}  // namespace hyperslab::pipeline
