// SPDX-License-Identifier: Apache-2.0
// The lines of plan about times.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hyperslab/plan/predict.hpp"
#include "hyperslab/plan/search.hpp"

namespace hyperslab::cli {

/// Warns if CPU ranks, all of them on this host, would not be started for want of memory, with the
/// line that they would end with.
void print_host_doubt(const std::string& host, const train::Config& config, bool training,
                      const std::vector<plan::Plan>& plans);
/// Warns of another device than the file's, and of more memory than a rank of it has, with
/// advice for the fullest rank, a pipeline rank of `plans`.
void print_doubts(const train::Config& config, bool training, const std::vector<plan::Plan>& plans,
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
