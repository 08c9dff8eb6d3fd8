// SPDX-License-Identifier: Apache-2.0
// Settings of deck section `memory` with which a layout fits into what its ranks have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hyperslab/plan/plan.hpp"

namespace hyperslab::plan {

/// The plan of a rank for its memory alone. Many microbatches take long to plan and no more memory
/// than those in flight, so a step of fewer is planned where the schedule allows that.
[[nodiscard]] Plan plan_memory(train::Config config, const train::TrainerOptions& options,
                               int world_rank);

/// Rows of a piece for `memory.mlp_rows`: a sixteenth of a microbatch, or as many as products need
/// to take no longer. None where that is no piece, where the deck has pieces already, and where
/// decks may not say it.
[[nodiscard]] std::optional<std::int64_t> rows_of_pieces(const train::Config& config);

/// The smallest number from `least` to `most` that fits, found by bisection. `fits` is true of
/// `most`, and of every number above one of which it is true.
[[nodiscard]] std::int64_t least_that_fits(std::int64_t least, std::int64_t most,
                                           const std::function<bool(std::int64_t)>& fits);

/// The memory that each rank has for its arenas.
class Room {
 public:
  /// `bytes`: none if it is not known, and all fits.
  Room(const train::TrainerOptions& options, std::optional<double> bytes)
      : options_(options), bytes_(bytes) {}

  [[nodiscard]] bool holds(const model::MemoryPlan& memory) const {
    return !bytes_ || static_cast<double>(memory.total()) <= *bytes_;
  }
  [[nodiscard]] bool fits(const train::Config& config) const;
  /// With memory.recompute: full, and as many blocks that keep their activations as fit. None if
  /// not even all computed again do.
  [[nodiscard]] std::optional<train::Config> keep_blocks(train::Config config) const;
  /// A configuration with state on the host that fits, with as much of it on the device as fits.
  [[nodiscard]] train::Config keep_state(train::Config config) const;

 private:
  /// Plans of the ranks of one pipeline; none if one of them does not fit.
  [[nodiscard]] std::vector<Plan> fitting_plans(const train::Config& config) const;

  const train::TrainerOptions& options_;
  std::optional<double> bytes_;
};

}  // namespace hyperslab::plan
