// SPDX-License-Identifier: Apache-2.0
// What plan says of times.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "hyperslab/plan/predict.hpp"
#include "hyperslab/plan/search.hpp"

namespace hyperslab::cli {

void print_prediction(const train::Config& config, const plan::PredictedStep& predicted,
                      const plan::MachineFile& machine);
/// The fastest layouts, and why others fell out.
void print_search(const plan::SearchResult& result, const plan::MachineFile& machine);
void print_interval(const plan::CheckpointInterval& interval, double step_seconds);
[[nodiscard]] nlohmann::ordered_json to_json(const train::Config& config,
                                             const plan::PredictedStep& predicted,
                                             const plan::MachineFile& machine);

}  // namespace hyperslab::cli
