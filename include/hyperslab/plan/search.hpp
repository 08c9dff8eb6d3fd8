// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/plan/machine_file.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::plan {

/// Empty if the rules allow the configuration, else one sentence that says which one does not. The
/// deck's rules are above this module: whoever read the deck hands them down.
using WhyNot = std::function<std::string(const train::Config&)>;

/// A layout that is legal and fits.
struct FoundLayout {
  train::Config config;
  double seconds = 0;            ///< seconds of a step
  std::size_t memory_bytes = 0;  ///< memory of the fullest rank
  std::size_t host_bytes = 0;    ///< most of a rank in its host's memory: state that rests there
};

struct SearchResult {
  std::vector<FoundLayout> found;  ///< the fastest first
  /// The number of layouts that fell out for a reason: "parallel.tensor: ..." or "needs more memory
  /// ...".
  std::map<std::string, int> left_out;
  int tried = 0;  ///< all of the two
};

/// The layouts of `ranks` ranks for a deck: every way to cut them into data, tensor and pipeline
/// ranks, with microbatches of powers of two, sequence parallelism, the least recomputation and
/// the least sharding (zero 1, then 2 and 3) that fits; then, for the fastest of these, the other
/// schedules, and shards within a node. The deck's values of these keys are not kept; all others
/// are. Each is planned on `meta`, without the pairs that `documents` leave out, and simulated.
/// Takes about 50 ms a layout.
[[nodiscard]] SearchResult search_layouts(const train::Config& deck, int ranks,
                                          const train::TrainerOptions& options,
                                          const MachineFile& machine, const WhyNot& why_not,
                                          const KeyShares& documents = {});

/// The layout in words of the deck, "data=4 tensor=2 pipeline=1 zero=1 microbatch=2".
[[nodiscard]] std::string settings_of(const train::Config& config);

}  // namespace hyperslab::plan
