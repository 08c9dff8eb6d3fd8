// SPDX-License-Identifier: Apache-2.0
#include "kernel_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../planned.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/plan/plan.hpp"

namespace hyperslab::cli {
namespace {

using Choices = std::map<Ledger::Key, KernelChoice>;

void print(const Choices& choices) {
  if (choices.empty()) return fmt::print("no op of this step has a table of kernels\n");
  fmt::print("{:<34} {:>5}  {:<28}  {}\n", "op", "calls", "kernel", "problem");
  for (const auto& [key, choice] : choices) {
    fmt::print("{:<34} {:>5}  {:<28}  {}\n", key.first, choice.calls, choice.kernel, key.second);
    for (const KernelChoice::Refused& row : choice.before) {
      fmt::print("{:<34} {:>5}  not {:<24}  {}\n", "", "", row.kernel, row.reason);
    }
  }
}

nlohmann::ordered_json to_json(const Choices& choices) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [key, choice] : choices) {
    nlohmann::ordered_json row = {{"op", key.first},
                                  {"problem", key.second},
                                  {"calls", choice.calls},
                                  {"kernel", choice.kernel},
                                  {"before", nlohmann::ordered_json::array()}};
    for (const auto& [kernel, reason] : choice.before) {
      row["before"].push_back({{"kernel", kernel}, {"reason", reason}});
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

ExitCode run_kernel_table(comm::World& world, const Arguments& args) {
  if (args.get<std::string>("mode") != "step") {
    throw Error(ExitCode::usage, "--kernel-table is of a training step: leave --mode out")
        .on_all_ranks();
  }
  DeckSource source;
  source.path = args.list("DECK").front();
  source.overrides = args.list("set");
  source.for_training = true;
  source.any_ranks = true;
  source.is_plan = true;
  source.unused = keys_beside_the_step();
  source.device = "cuda";
  const train::Config config = read_planned_config(world, source);
  const plan::Plan plan = plan::make_plan(config, planned_options(config), 0);
  if (world.rank() != 0) return ExitCode::ok;
  fmt::print("kernels of a step of rank 0 on GPUs of compute capability 9.0\n");
  print(plan.ledger.kernels());
  if (args.has("json")) {
    const nlohmann::ordered_json out = {{"deck", source.path},
                                        {"mode", "kernel-table"},
                                        {"kernels", to_json(plan.ledger.kernels())}};
    io::write_text_file(args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
