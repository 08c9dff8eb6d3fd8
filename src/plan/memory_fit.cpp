// SPDX-License-Identifier: Apache-2.0
#include "memory_fit.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace hyperslab::plan {
namespace {

constexpr double kBytesOfGib = 1073741824.0;
/// The step of memory.resident_gib, about three chunks of AdamW's state.
constexpr double kStateStepGib = 0.25;

/// The most blocks of a rank.
std::int64_t most_blocks(const std::vector<Plan>& plans) {
  std::int64_t most = 0;
  for (const Plan& plan : plans) {
    const auto blocks = std::ranges::count_if(
        plan.units, [](std::string_view name) { return name.starts_with("blocks."); });
    most = std::max<std::int64_t>(most, blocks);
  }
  return most;
}

}  // namespace

Plan plan_memory(train::Config config, const train::TrainerOptions& options, int world_rank) {
  const std::int64_t enough = std::int64_t{4} * config.parallel.pipeline;
  const bool keeps_all = config.parallel.schedule == mesh::Schedule::gpipe;
  if (!keeps_all && config.microbatches() > enough) {
    config.train.global_batch = enough * config.train.microbatch * config.parallel.data;
  }
  return make_plan(config, options, world_rank);
}

std::optional<std::int64_t> rows_of_pieces(const train::Config& config) {
  constexpr std::int64_t kPieces = 16;
  constexpr std::int64_t kLeastRows = 4096;
  constexpr std::int64_t kMostRows = 1 << 24;  // decks may say no more
  const std::int64_t all = config.train.microbatch * config.model.context;
  const std::int64_t rows = std::max(all / kPieces, kLeastRows);
  if (config.memory.mlp_rows > 0 || rows >= all || rows > kMostRows) return std::nullopt;
  return rows;
}

std::int64_t least_that_fits(std::int64_t least, std::int64_t most,
                             const std::function<bool(std::int64_t)>& fits) {
  while (least < most) {
    const std::int64_t middle = least + (most - least) / 2;
    if (fits(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

std::vector<Plan> Room::fitting_plans(const train::Config& config) const {
  std::vector<Plan> plans;
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::first_rank_of(config.parallel, stage);
    plans.push_back(plan_memory(config, options_, rank));
    if (!holds(plans.back().memory)) return {};
  }
  return plans;
}

bool Room::fits(const train::Config& config) const {
  return !bytes_ || !fitting_plans(config).empty();
}

std::optional<train::Config> Room::keep_blocks(train::Config config) const {
  config.memory.recompute = nn::Recompute::full;
  config.memory.recompute_layers = 0;
  const std::vector<Plan> plans = fitting_plans(config);
  if (plans.empty()) return std::nullopt;
  const std::int64_t all = most_blocks(plans);
  const std::int64_t again = least_that_fits(1, all, [&](std::int64_t blocks) {
    config.memory.recompute_layers = blocks;
    return fits(config);
  });
  config.memory.recompute_layers = again == all ? 0 : again;
  return config;
}

train::Config Room::keep_state(train::Config config) const {
  config.memory.resident_gib = 0;
  if (!bytes_) return config;
  double all_gib = 0;             // which the ranks have on the host
  std::optional<double> at_most;  // for ranks that have no room for all of theirs
  for (const Plan& plan : fitting_plans(config)) {
    const double left = *bytes_ - static_cast<double>(plan.memory.total());
    const auto state = static_cast<double>(plan.memory.host);
    all_gib = std::max(all_gib, state / kBytesOfGib);
    if (state > left) at_most = std::min(at_most.value_or(left), left);
  }
  const auto whole_steps = [](double gib) {
    return kStateStepGib * std::floor(gib / kStateStepGib);
  };
  const auto fits_with = [&](double gib) {
    config.memory.resident_gib = gib;
    return fits(config);
  };
  const double most = whole_steps(all_gib + kStateStepGib);
  double gib = at_most ? whole_steps(*at_most / kBytesOfGib) : most;
  // Arrays of chunks are aligned, which takes a few bytes of each; all that stays needs no chunks.
  while (gib > 0 && !fits_with(gib)) gib -= kStateStepGib;
  while (gib + kStateStepGib <= most && fits_with(gib + kStateStepGib)) gib += kStateStepGib;
  config.memory.resident_gib = gib;
  return config;
}

}  // namespace hyperslab::plan
