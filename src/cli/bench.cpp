// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/bench.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench_data.hpp"
#include "command.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/train/run.hpp"

namespace hyperslab::cli {
namespace {

train::BenchOptions bench_options(const Arguments& args) {
  train::BenchOptions options;
  const auto mode = args.get<std::string>("mode");
  if (mode == "forward")
    options.mode = train::BenchMode::forward;
  else if (mode == "forward-backward")
    options.mode = train::BenchMode::forward_backward;
  else if (mode != "step" && mode != "data") {
    throw Error(ExitCode::usage,
                "--mode is '" + mode + "'; it can be forward, forward-backward, step, data")
        .on_all_ranks();
  }
  options.warmup = args.get<int>("warmup");
  options.steps = args.get<int>("steps");
  options.cold = args.has("cold");
  options.components = args.has("components");
  if (options.warmup < 0 || options.steps < 1) {
    throw Error(ExitCode::usage, "--warmup must be 0 or more and --steps 1 or more").on_all_ranks();
  }
  return options;
}

void print(const train::BenchResult& result, bool components) {
  fmt::print(
      "step             {:.3f} ms mean, {:.3f} ms standard deviation, {:.3f} ms median of {}\n",
      1e3 * result.mean, 1e3 * result.standard_deviation, 1e3 * result.median,
      result.step_seconds.size());
  fmt::print("tokens           {:.0f} a step, {:.1f} a second\n", result.tokens,
             result.tokens_per_second());
  fmt::print("model FLOPs      {:.3f} GFLOP a step, {:.2f} GFLOP/s\n", 1e-9 * result.model_flops,
             1e-9 * result.flops_per_second());
  fmt::print("matmul rate      {:.2f} GFLOP/s of all ranks together, fp32, 2048 x 2048 x 2048\n",
             1e-9 * result.matmul_rate);
  fmt::print("utilization      {:.1f} % causal, {:.1f} % full\n", 100.0 * result.mfu(),
             100.0 * result.mfu() * result.model_flops_full / result.model_flops);
  fmt::print("memory           {:.1f} MiB on the fullest rank\n",
             static_cast<double>(result.memory_peak_bytes) / 1048576.0);
  if (!components) return;
  fmt::print("\n{:<14} {:>12} {:>12} {:>8} {:>16}\n", "component", "ms", "GFLOP", "share",
             "share of FLOPs");
  for (const train::BenchComponent& row : result.components) {
    fmt::print("{:<14} {:>12.3f} {:>12.3f} {:>6.1f} % {:>14.1f} %\n", row.name, 1e3 * row.seconds,
               1e-9 * row.flops, 100.0 * row.share, 100.0 * row.expected_share);
  }
}

nlohmann::ordered_json to_json(const train::BenchResult& result, const std::string& deck,
                               const std::string& mode, int ranks) {
  nlohmann::ordered_json out;
  out["deck"] = deck;
  out["mode"] = mode;
  out["ranks"] = ranks;
  out["commit"] = commit();
  out["step_seconds"] = result.step_seconds;
  out["mean_seconds"] = result.mean;
  out["standard_deviation_seconds"] = result.standard_deviation;
  out["median_seconds"] = result.median;
  out["tokens_per_second"] = result.tokens_per_second();
  out["model_flops"] = result.model_flops;
  out["flops_per_second"] = result.flops_per_second();
  out["matmul_rate"] = result.matmul_rate;
  out["mfu"] = result.mfu();
  out["memory_peak_bytes"] = result.memory_peak_bytes;
  for (const train::BenchComponent& row : result.components) {
    out["components"][row.name] = {{"seconds", row.seconds},
                                   {"flops", row.flops},
                                   {"share", row.share},
                                   {"expected_share", row.expected_share}};
  }
  return out;
}

}  // namespace

ExitCode run_bench(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args(
      "usage: [mpirun -np N] hyperslab bench DECK --mode forward|forward-backward|step|data times "
      "steps of DECK on generated tokens, or the loader of its training files");
  add_deck_options(args);
  args.add()(
      "mode", po::value<std::string>()->default_value("step"),
      "forward (with the loss), forward-backward, step (with optimizer), or data (loader alone)")(
      "warmup", po::value<int>()->default_value(5), "steps before the measured ones")(
      "steps", po::value<int>()->default_value(10), "measured steps")(
      "components", "time, FLOPs and share of every part of the model")(
      "cold", "no warm-up: setup, plan building and first calls fall into step 1")(
      "json", po::value<std::string>(), "also write all figures, every step, to this file");
  args.positional("DECK");
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const train::BenchOptions options = bench_options(args);
  const std::string deck = args.list("DECK").front();
  const train::Config config = read_config(world, {deck, args.list("set"), false, false});
  if (args.get<std::string>("mode") == "data") {
    run_bench_of_data(world, args, config, options.warmup, options.steps);
    return ExitCode::ok;
  }
  const train::BenchResult result = train::run_bench(world, config, options);
  if (world.rank() == 0) print(result, args.has("components"));
  if (args.has("json")) {
    train::agree(world, [&] {
      if (world.rank() != 0) return;
      const auto path = args.get<std::string>("json");
      std::ofstream file(path);
      file << to_json(result, deck, args.get<std::string>("mode"), world.size()).dump(2) << '\n';
      if (!file.flush()) throw Error(ExitCode::storage, path + ": cannot write this file");
    });
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
