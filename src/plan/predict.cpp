// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/predict.hpp"

#include <algorithm>
#include <cmath>

#include "hyperslab/train/setup.hpp"

namespace hyperslab::plan {

PredictedStep predict(const train::Config& config, const std::vector<Plan>& plans,
                      const MachineFile& machine, bool training, const KeyShares& documents) {
  Prices prices(machine, config.precision.compute);
  std::vector<std::vector<OperationList>> steps;
  steps.reserve(plans.size());
  for (const Plan& plan : plans) steps.push_back(plan.operations);
  PredictedStep predicted;
  predicted.step = simulate_sustained(steps, config.parallel, prices);
  predicted.tokens = static_cast<double>(config.train.global_batch * config.model.context);
  const Dim T = config.model.context;
  predicted.model_flops =
      predicted.tokens * (training ? train::flops_per_token(config, T, documents)
                                   : model::flops_per_token(config.model, T, documents) / 3);
  predicted.peak_flops = prices.peak_flops();
  predicted.knows_peak = prices.knows_peak();
  predicted.unknown_ops = prices.unknown_ops();
  return predicted;
}

CheckpointInterval checkpoint_interval(double save_seconds, double mtbf_hours, int ranks) {
  constexpr double kSecondsPerHour = 3600;
  CheckpointInterval interval;
  interval.save_seconds = save_seconds;
  interval.failure_seconds = kSecondsPerHour * mtbf_hours / ranks;
  const double ratio = save_seconds / (2 * interval.failure_seconds);
  interval.interval_seconds = ratio < 1 ? std::sqrt(2 * save_seconds * interval.failure_seconds) *
                                                  (1 + std::sqrt(ratio) / 3 + ratio / 9) -
                                              save_seconds
                                        : interval.failure_seconds;
  interval.lost_share =
      std::min(1.0, save_seconds / (interval.interval_seconds + save_seconds) +
                        interval.interval_seconds / (2 * interval.failure_seconds));
  return interval;
}

}  // namespace hyperslab::plan
