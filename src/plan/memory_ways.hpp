// SPDX-License-Identifier: Apache-2.0
// Sharding and settings of deck section `memory` with which a layout fits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hyperslab/plan/search.hpp"
#include "memory_fit.hpp"

namespace hyperslab::plan {

inline constexpr const char* kNeedsMemory = "needs more memory than a rank has";

/// Looks for the ways in which a layout fits: a cut of the ranks with a microbatch.
class MemoryWays {
 public:
  /// Takes what left a configuration out: a rule or kNeedsMemory.
  using Refused = std::function<void(const std::string& reason)>;
  /// Configurations of which each gives up more activations for state than the one before. Where
  /// one is slower than the one before, so are those after it.
  using Way = std::vector<train::Config>;

  /// `may_use_host`: true if state may rest there.
  MemoryWays(const Room& room, const WhyNot& why_not, const train::TrainerOptions& options,
             bool may_use_host)
      : room_(room), why_not_(why_not), options_(options), may_use_host_(may_use_host) {}

  /// The ways of which one is the fastest, of one configuration each: that with the least
  /// recomputation and the least sharding that fits, and those that shard less or keep the
  /// activations of more blocks. None fits: empty.
  [[nodiscard]] std::vector<Way> of(const train::Config& layout, const Refused& refused) const;
  /// Ways of a layout that does not fit so: with loss and feed-forward networks in pieces of rows,
  /// else with state on the host, else with both.
  [[nodiscard]] std::vector<Way> last_resorts(const train::Config& layout) const;
  /// A legal configuration with as many blocks and as much state kept as now fit; unchanged where
  /// it keeps none.
  [[nodiscard]] train::Config fitted(train::Config config) const;

 private:
  [[nodiscard]] bool is_legal(const train::Config& config) const {
    return why_not_(config).empty();
  }
  [[nodiscard]] std::vector<Way> with_kept_blocks(const train::Config& layout,
                                                  const train::Config& first) const;
  [[nodiscard]] Way with_kept_state(const train::Config& config) const;
  [[nodiscard]] bool fits_at_all(const train::Config& layout) const;
  [[nodiscard]] std::vector<train::Config> in_pieces(const train::Config& layout) const;

  const Room& room_;
  const WhyNot& why_not_;
  const train::TrainerOptions& options_;
  bool may_use_host_;
};

}  // namespace hyperslab::plan
