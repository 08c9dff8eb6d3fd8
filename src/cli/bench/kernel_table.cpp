// SPDX-License-Identifier: Apache-2.0
#include "kernel_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../planned.hpp"
#include "decode.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/plan/plan.hpp"

namespace hyperslab::cli {
namespace {

using Choices = std::map<Ledger::Key, KernelChoice>;

void print(const Choices& choices) {
  if (choices.empty()) return fmt::print("every operation has one kernel alone\n");
  fmt::print("{:<34} {:>5}  {:<28}  {}\n", "op", "calls", "kernel", "problem");
  for (const auto& [key, choice] : choices) {
    fmt::print("{:<34} {:>5}  {:<28}  {}\n", key.first, choice.calls, choice.kernel, key.second);
    if (!choice.source.empty()) {
      fmt::print("{:<34} {:>5}  src/ops/cuda/{}\n", "", "", choice.source);
    }
    for (const auto* rows : {&choice.before, &choice.after}) {
      for (const auto& [kernel, reason] : *rows) {
        fmt::print("{:<34} {:>5}  {:<4} {:<23}  {}\n", "", "", reason.empty() ? "then" : "not",
                   kernel, reason.empty() ? "suits, too" : reason);
      }
    }
  }
}

nlohmann::ordered_json to_json(const std::vector<KernelChoice::Refused>& rows) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const auto& [kernel, reason] : rows) out.push_back({{"kernel", kernel}, {"reason", reason}});
  return out;
}

nlohmann::ordered_json to_json(const Choices& choices) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [key, choice] : choices) {
    rows.push_back({{"op", key.first},
                    {"problem", key.second},
                    {"calls", choice.calls},
                    {"kernel", choice.kernel},
                    {"source", choice.source},
                    {"before", to_json(choice.before)},
                    {"after", to_json(choice.after)}});
  }
  return rows;
}

void plan_decoding(const Arguments& args, const train::Config& config,
                   train::TrainerOptions& options) {
  options.training = false;
  options.generation = model::Generation::cached;
  options.cache_size.rows = args.get<int>("rows");
  options.cache_size.tokens = config.model.context;
  options.draft_tokens = draft_of_bench(args);
  options.T =
      std::max<Dim>(config.model.context, options.cache_size.rows * (1 + options.draft_tokens));
}

}  // namespace

ExitCode run_kernel_table(comm::World& world, const Arguments& args) {
  const std::string mode = args.get<std::string>("mode");
  if (mode != "step" && mode != "decode") {
    throw Error(ExitCode::usage,
                fmt::format("--kernel-table goes with --mode step and decode, not {}", mode))
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
  train::TrainerOptions options = planned_options(config);
  if (mode == "decode") plan_decoding(args, config, options);
  const plan::Plan plan = plan::make_plan(config, options, 0);
  if (world.rank() != 0) return ExitCode::ok;
  fmt::print(
      "operations of {} of rank 0 that have several kernels, and the one that each takes on GPUs "
      "of "
      "compute capability 9.0\n",
      mode == "step"              ? "a step"
      : options.draft_tokens == 0 ? "a prompt and a token of every text"
                                  : "a prompt, and a token of every text with and without guesses");
  print(plan.ledger.kernels());
  if (args.has("json")) {
    const nlohmann::ordered_json out = {{"deck", source.path},
                                        {"mode", "kernel-table"},
                                        {"of", mode},
                                        {"kernels", to_json(plan.ledger.kernels())}};
    io::write_text_file(args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
