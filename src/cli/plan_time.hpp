// SPDX-License-Identifier: Apache-2.0
// What plan says of times.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "hyperslab/plan/predict.hpp"
#include "hyperslab/plan/search.hpp"

namespace hyperslab::cli {

/// Warns of another device than that of the file, and of more memory than a rank of it has.
/// largest: bytes of the fullest rank.
void print_doubts(const train::Config& config, std::size_t largest,
                  const plan::MachineFile& machine);
void print_prediction(const train::Config& config, const plan::PredictedStep& predicted,
                      const plan::MachineFile& machine);
/// The fastest layouts, and why others fell out.
void print_search(const plan::SearchResult& result, const plan::MachineFile& machine);
void print_interval(const plan::CheckpointInterval& interval, double step_seconds);
[[nodiscard]] nlohmann::ordered_json to_json(const train::Config& config,
                                             const plan::PredictedStep& predicted,
                                             const plan::MachineFile& machine);

}  // namespace hyperslab::cli
