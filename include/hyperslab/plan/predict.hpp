// SPDX-License-Identifier: Apache-2.0
// Predictions of a planned step's time on a machine, and of how often to save.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/plan/plan.hpp"
#include "hyperslab/plan/simulate.hpp"

namespace hyperslab::plan {

/// A step on a machine, and the figures that follow from its time.
struct PredictedStep {
  SimulatedStep step;
  double tokens = 0;       ///< tokens of a step, all ranks
  double model_flops = 0;  ///< FLOPs of a step, all ranks, causal
  double peak_flops = 0;   ///< FLOP/s of a rank
  bool knows_peak = true;  ///< false: `peak_flops` are those of the fastest measured product
  std::vector<std::string> unknown_ops;

  [[nodiscard]] double tokens_per_second() const { return tokens / step.seconds; }
  [[nodiscard]] double mfu(int ranks) const {
    return model_flops / step.seconds / (peak_flops * ranks);
  }
};

/// `plans`: of each pipeline rank, with two listed steps, after leave_out_documents(`documents`).
[[nodiscard]] PredictedStep predict(const train::Config& config, const std::vector<Plan>& plans,
                                    const MachineFile& machine, bool training,
                                    const KeyShares& documents = {});

/// The interval of saves at which least time is lost: Young's interval, sqrt(2 x save x time
/// between failures), of J. W. Young, CACM 17 (1974), eq. 6; Daly, FGCS 22 (2006), refines it for
/// intervals that are not short against the time between failures.
struct CheckpointInterval {
  double save_seconds = 0;
  double failure_seconds = 0;   ///< between two failures anywhere in the run
  double interval_seconds = 0;  ///< by Daly's eq. 37
  double lost_share = 0;        ///< share of the time for saves and for work that is done again
};
/// `mtbf_hours`: between two failures of one rank. Of `ranks` ranks any can fail.
[[nodiscard]] CheckpointInterval checkpoint_interval(double save_seconds, double mtbf_hours,
                                                     int ranks);

}  // namespace hyperslab::plan
