// SPDX-License-Identifier: Apache-2.0
#include "time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "../command.hpp"
#include "../planned.hpp"
#include "hyperslab/comm/memory_limit.hpp"
#include "hyperslab/plan/out_of_memory.hpp"
#include "hyperslab/plan/units.hpp"
#include "layout.hpp"

namespace hyperslab::cli {
namespace {

double sum_of(const std::map<std::string, double>& parts) {
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  return sum;
}

double exposed(const plan::SimulatedRank& rank, const std::string& group) {
  const auto found = rank.exposed.find(group);
  return found == rank.exposed.end() ? 0 : found->second;
}

/// Waiting for other stages, and at the end of the step.
double idle(const plan::SimulatedRank& rank) {
  return rank.step - rank.compute - sum_of(rank.exposed) + exposed(rank, "pipeline") +
         exposed(rank, "world");
}

/// The waits of a step that the columns do not show.
void print_waits(const plan::SimulatedStep& step, bool has_context) {
  double idle_sum = 0;
  double host_link = 0;
  for (const plan::SimulatedRank& rank : step.ranks) {
    idle_sum += idle(rank);
    host_link = std::max(host_link, exposed(rank, std::string(kHostLink)));
  }
  fmt::print(
      "data, tensor{}: waiting for these groups' collectives, not hidden by computation; idle: "
      "waiting for other stages, {:.1f} % of the step\n",
      has_context ? ", context" : "",
      100 * idle_sum / (step.seconds * static_cast<double>(step.ranks.size())));
  if (host_link == 0) return;
  fmt::print("host link: {:.2f} ms of the step wait for state from the host\n", 1e3 * host_link);
}

/// In a unit in which small times do not read as none.
std::string duration(double seconds) {
  if (seconds >= 60) return fmt::format("{:.1f} min", seconds / 60);
  return seconds >= 1 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.1f} ms", 1e3 * seconds);
}

void print_speed(const plan::PredictedStep& predicted, int ranks,
                 const plan::MachineFile& machine) {
  fmt::print(
      "\non {}: {:.2f} ms a step, {:.0f} tokens/s, {:.0f} on each rank, {} {:.1f} % of {}{}, "
      "counting of attention what its mask leaves\n",
      machine.name, 1e3 * predicted.step.seconds, predicted.tokens_per_second(),
      predicted.tokens_per_second() / ranks, predicted.knows_peak ? "MFU" : "utilization",
      100 * predicted.mfu(ranks), plan::rate_text(predicted.peak_flops),
      predicted.knows_peak ? "" : ", the fastest product that was measured");
}

}  // namespace

void print_host_doubt(const std::string& host, const train::Config& config, bool training,
                      const std::vector<plan::Plan>& plans) {
  if (planned_device(config) != Device::cpu) return;
  const std::vector<comm::MemoryLimit> limits = comm::memory_limits(host);
  const auto plan_of = [&](int rank) -> const plan::Plan& {
    const mesh::Position at(config.parallel, rank);
    return plans[static_cast<std::size_t>(at.at(mesh::Axis::pipeline))];
  };
  std::vector<comm::MemoryNeed> ranks;
  ranks.reserve(static_cast<std::size_t>(config.parallel.ranks()));
  for (int rank = 0; rank < config.parallel.ranks(); ++rank) {
    ranks.push_back({plan_of(rank).memory.total(), limits});
  }
  const auto shortage = comm::memory_shortage(ranks);
  if (!shortage) return;
  train::TrainerOptions options = planned_options(config);
  options.training = training;
  fmt::print("warning: does not fit, if all ranks are on this host: {}; {}\n",
             plan::describe(*shortage),
             plan::host_advice(config, options, plan_of(shortage->fullest_rank).memory,
                               legal_changes(config), *shortage));
}

void print_doubts(const train::Config& config, bool training, const std::vector<plan::Plan>& plans,
                  const plan::MachineFile& machine) {
  const bool is_gpu = planned_device(config) == Device::cuda;
  if (is_gpu != (machine.device == "cuda")) {
    fmt::print(
        "warning: the machine file is of {}, and this plan is for the device {}; see --device\n",
        machine.name, is_gpu ? "cuda" : "cpu");
  }
  const auto bytes_of = [](const plan::Plan& plan) {
    return static_cast<double>(plan.memory.total());
  };
  const auto fullest = std::ranges::max_element(plans, {}, bytes_of);
  if (machine.memory_bytes <= 0 || bytes_of(*fullest) <= machine.memory_bytes) return;
  train::TrainerOptions options = planned_options(config);
  options.training = training;
  const int rank = mesh::first_rank_of(config.parallel, static_cast<int>(fullest - plans.begin()));
  fmt::print(
      "warning: does not fit: the fullest rank needs {}, most of it for {}; {} of {} has {}; {}\n",
      plan::bytes_text(bytes_of(*fullest)), plan::largest_parts(fullest->memory),
      machine.device == "cuda" ? "one" : "a rank", machine.name,
      plan::bytes_text(machine.memory_bytes),
      plan::memory_advice(config, options, rank, legal_changes(config),
                          static_cast<std::size_t>(machine.memory_bytes)));
}

void print_prediction(const train::Config& config, const plan::PredictedStep& predicted,
                      const plan::MachineFile& machine) {
  const plan::SimulatedStep& step = predicted.step;
  const int ranks = config.parallel.ranks();
  print_speed(predicted, ranks, machine);
  const bool has_context = config.parallel.context > 1;
  const auto of_context = [&](const std::string& text) {
    return has_context ? fmt::format(" {:>11}", text) : "";
  };
  fmt::print("{:<10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}{} {:>11}\n", "ms", "forward",
             "backward", "optimizer", "compute", "data", "tensor", of_context("context"), "idle");
  for (std::size_t i = 0; i < step.ranks.size(); ++i) {
    const plan::SimulatedRank& rank = step.ranks[i];
    const auto phase = [&](Phase wanted) {
      return 1e3 * rank.compute_by_phase[static_cast<std::size_t>(wanted)];
    };
    fmt::print("{:<10} {:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f} {:>11.2f}{} {:>11.2f}\n",
               fmt::format("pipeline {}", i), phase(Phase::forward), phase(Phase::backward),
               phase(Phase::optimizer), 1e3 * rank.compute,
               1e3 * (exposed(rank, "data") + exposed(rank, "shard") + exposed(rank, "replica") +
                      exposed(rank, "tied")),
               1e3 * (exposed(rank, "tensor") + exposed(rank, "key_value")),
               of_context(fmt::format("{:.2f}", 1e3 * exposed(rank, "context"))), 1e3 * idle(rank));
  }
  print_waits(step, has_context);
  if (machine.network_bytes_per_second <= 0 && ranks > machine.ranks_per_node) {
    fmt::print(
        "the machine file does not say network_bytes_per_second: all {} ranks are taken to "
        "be on one node\n",
        ranks);
  }
  if (predicted.unknown_ops.empty()) return;
  fmt::print("never measured on {}, and priced like other ops: {}\n", machine.name,
             fmt::join(predicted.unknown_ops, ", "));
}

void print_search(const plan::SearchResult& result, const plan::MachineFile& machine) {
  constexpr std::size_t kShown = 10;
  fmt::print("on {}: {} layouts tried, {} are legal and fit\n", machine.name, result.tried,
             result.found.size());
  const std::span<const plan::FoundLayout> shown =
      std::span(result.found).first(std::min(kShown, result.found.size()));
  const bool uses_host = std::ranges::any_of(
      shown, [](const plan::FoundLayout& layout) { return layout.host_bytes > 0; });
  const auto host = [&](const std::string& text) {
    return uses_host ? fmt::format(" {:>10}", text) : "";
  };
  std::size_t most = 0;
  for (const plan::FoundLayout& layout : shown) {
    most = std::max({most, layout.memory_bytes, layout.host_bytes});
  }
  const Unit unit = byte_unit(static_cast<double>(most));
  const auto memory = [&](std::size_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / unit.size);
  };
  if (!shown.empty()) {
    fmt::print("{:>12} {:>14} {:>10}{}  layout\n", "ms a step", "tokens/s", unit.name,
               host("host " + std::string(unit.name)));
  }
  for (const plan::FoundLayout& layout : shown) {
    const auto tokens =
        static_cast<double>(layout.config.train.global_batch * layout.config.model.context);
    fmt::print("{:>12.2f} {:>14.0f} {:>10}{}  {}\n", 1e3 * layout.seconds, tokens / layout.seconds,
               memory(layout.memory_bytes), host(memory(layout.host_bytes)),
               plan::settings_of(layout.config));
  }
  if (!result.left_out.empty()) fmt::print("left out\n");
  for (const auto& [reason, count] : result.left_out) fmt::print("{:>12}  {}\n", count, reason);
}

void print_interval(const plan::CheckpointInterval& interval, double step_seconds) {
  fmt::print(
      "checkpoint    a save of {} and a failure every {:.1f} h of the whole run: save every {} "
      "({:.0f} steps); {:.2f} % of the time is lost\n",
      duration(interval.save_seconds), interval.failure_seconds / 3600,
      duration(interval.interval_seconds), std::max(1.0, interval.interval_seconds / step_seconds),
      100 * interval.lost_share);
}

nlohmann::ordered_json to_json(const train::Config& config, const plan::PredictedStep& predicted,
                               const plan::MachineFile& machine) {
  const int ranks = config.parallel.ranks();
  nlohmann::ordered_json out = {{"machine", machine.name},
                                {"step_seconds", predicted.step.seconds},
                                {"tokens_per_second", predicted.tokens_per_second()},
                                {"mfu", predicted.mfu(ranks)}};
  for (const plan::SimulatedRank& rank : predicted.step.ranks) {
    out["pipeline_ranks"].push_back({{"compute_seconds", rank.compute},
                                     {"exposed_seconds", rank.exposed},
                                     {"communication_seconds", rank.communication},
                                     {"idle_seconds", idle(rank)}});
  }
  return out;
}

}  // namespace hyperslab::cli
