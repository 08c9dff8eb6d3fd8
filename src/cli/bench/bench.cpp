// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/bench/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "../command.hpp"
#include "data.hpp"
#include "decode.hpp"
#include "hyperslab/bench/machine.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"
#include "kernel_table.hpp"
#include "print.hpp"

namespace hyperslab::cli {
namespace {

using bench::BenchMode;
using nlohmann::ordered_json;

/// The modes that --mode names: one, or all three that compute.
std::vector<std::pair<std::string, BenchMode>> modes_of(const std::string& mode) {
  std::vector<std::pair<std::string, BenchMode>> all = {
      {"forward", BenchMode::forward},
      {"forward-backward", BenchMode::forward_backward},
      {"step", BenchMode::step}};
  if (mode == "all") return all;
  if (mode == "data" || mode == "decode") return {{mode, BenchMode::step}};
  for (const auto& one : all) {
    if (one.first == mode) return {one};
  }
  throw Error(
      ExitCode::usage,
      "--mode is '" + mode + "'; it can be forward, forward-backward, step, all, data, decode")
      .on_all_ranks();
}

bool is_file_of(const std::string& path, const char* suffix) { return path.ends_with(suffix); }

void require_usable(const Arguments& args) {
  const auto refuse = [](const std::string& text) {
    throw Error(ExitCode::usage, text).on_all_ranks();
  };
  if (args.get<int>("warmup") < 0 || args.get<int>("steps") < 1) {
    refuse("--warmup must be 0 or more and --steps 1 or more");
  }
  if (args.has("memory")) {
    const auto path = args.get<std::string>("memory");
    if (!is_file_of(path, ".csv") && !is_file_of(path, ".json")) {
      refuse("--memory is '" + path + "'; the file must end in .csv or .json");
    }
  }
  if (args.has("memory-timeline")) {
    const auto path = args.get<std::string>("memory-timeline");
    if (!is_file_of(path, ".json")) {
      refuse("--memory-timeline is '" + path + "'; the file must end in .json");
    }
  }
  for (const char* option : {"kernels", "components", "ranges"}) {
    if (!args.has("communication") || !args.has(option)) continue;
    refuse(fmt::format("--communication looks at CUDA graphs, and --{} turns them off", option));
  }
  const auto mode = args.get<std::string>("mode");
  if (args.has("samples") && mode != "data") refuse("--samples goes with --mode data");
  if (args.get<int>("draft") != 0 && mode != "decode") refuse("--draft goes with --mode decode");
  for (const char* option : {"components", "cold", "each", "count", "machine"}) {
    if (args.has(option) && mode == "decode") {
      refuse(fmt::format("--{} does not go with --mode decode", option));
    }
  }
  for (const char* option :
       {"kernels", "communication", "memory", "memory-timeline", "dtypes", "ranges"}) {
    if (!args.has(option) || (mode != "all" && mode != "data" && mode != "decode")) continue;
    refuse(fmt::format("--{} goes with one mode: forward, forward-backward or step, not {}", option,
                       mode));
  }
}

bench::BenchOptions bench_options(const Arguments& args, const train::Config& config,
                                  BenchMode mode) {
  bench::BenchOptions options;
  options.mode = mode;
  options.warmup = args.get<int>("warmup");
  options.steps = args.get<int>("steps");
  options.cold = args.has("cold");
  options.components = args.has("components");
  options.kernels = args.has("kernels");
  options.communication = args.has("communication");
  options.memory_timeline = args.has("memory-timeline");
  options.ranges = args.has("ranges");
  options.is_legal = legal_changes(config);
  return options;
}

/// `text` is the first rank's.
void write(comm::World& world, const std::string& path, const std::string& text) {
  comm::agree(world, [&] {
    if (world.rank() == 0) io::write_text_file(path, text);
  });
}

/// Writes the allocations of all ranks into one file.
void write_memory(comm::World& world, const std::string& path, const bench::BenchMemory& memory) {
  const bool json = is_file_of(path, ".json");
  const std::vector<std::string> all =
      world.gather(json ? to_json(memory, world.rank()).dump() : to_csv(memory, world.rank()));
  std::string text = json ? "" : csv_header();
  ordered_json ranks;
  for (const std::string& one : all) {
    if (json) {
      ranks["ranks"].push_back(ordered_json::parse(one));
    } else {
      text += one;
    }
  }
  write(world, path, json ? ranks.dump(2) + "\n" : text);
}

/// Writes the timelines of all ranks, for `analysis memory`.
void write_memory_timeline(comm::World& world, const Arguments& args, const BenchSetup& setup,
                           const bench::BenchMemory& memory) {
  const std::vector<std::string> all = world.gather(timeline_json(memory, world.rank()).dump());
  ordered_json out = {{"format", "hyperslab memory timeline"}, {"format_version", 1}};
  out.update(head_of(args, setup));
  out["timelines"] = ordered_json::array();
  for (const std::string& one : all) out["timelines"].push_back(ordered_json::parse(one));
  write(world, args.get<std::string>("memory-timeline"), out.dump() + "\n");
}

ExitCode run_counts(comm::World& world, const Arguments& args, const train::Config& config) {
  const bench::CallCounts counts = bench::count_calls(world, config, legal_changes(config));
  if (world.rank() == 0) print_counts(counts);
  if (args.has("json")) {
    ordered_json out = head_of(args, setup_of(config));
    out["mode"] = "count";
    out["count"] = to_json(counts);
    write(world, args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return counts.passes() ? ExitCode::ok : ExitCode::internal;
}

/// Adds the rates measured here to the machine file, which is made if it is not there.
ExitCode run_machine(comm::World& world, const Arguments& args, const train::Config& config) {
  const auto path = args.get<std::string>("machine");
  plan::MachineFile file;
  comm::agree(world, [&] {
    if (std::filesystem::exists(path)) file = plan::read_machine_file(path);
  });
  const plan::MachineFile measured =
      bench::measure_machine(world, config, bench_options(args, config, BenchMode::step));
  if (world.rank() == 0 && !file.name.empty() && file.name != measured.name) {
    log::warn(fmt::format("{} is of {}, and this machine is {}: rows of both will be in it", path,
                          file.name, measured.name));
  }
  plan::merge(file, measured);
  write(world, path, plan::to_text(file));
  if (world.rank() != 0) return ExitCode::ok;
  std::size_t ops = 0;
  for (const auto& [precision, rows] : measured.ops) ops += rows.size();
  fmt::print("{}: {} op sizes and {} collectives of {} measured, {} and {} in all\n", path, ops,
             measured.collectives.size(), measured.name,
             file.ops[std::string(name_of(config.precision.compute))].size(),
             file.collectives.size());
  return ExitCode::ok;
}

void print(const bench::BenchResult& result, const Arguments& args) {
  print_times(result, args.has("cold"), args.has("each"));
  if (args.has("components")) print_components(result);
  if (args.has("kernels")) print_kernels(result);
  if (args.has("communication")) print_communication(result);
  if (args.has("dtypes")) print_dtypes(result);
  if (args.has("memory")) print_memory(result.memory);
}

/// Backward alone is its phase in forward-backward, to which the gradient of the loss belongs.
struct Summary {
  double forward = 0;
  double backward = 0;
  double both = 0;
  double step = 0;
  explicit Summary(std::map<std::string, bench::BenchResult>& results)
      : forward(results["forward"].mean),
        backward(
            results["forward-backward"].phase_seconds[static_cast<std::size_t>(Phase::backward)]),
        both(results["forward-backward"].mean),
        step(results["step"].mean) {}
  [[nodiscard]] double ratio() const { return both / forward; }
};

ExitCode run_all_modes(comm::World& world, const Arguments& args, const train::Config& config) {
  std::map<std::string, bench::BenchResult> results;
  const BenchSetup setup = setup_of(config);
  ordered_json out = head_of(args, setup);
  if (world.rank() == 0) print_setup(setup);
  for (const auto& [name, mode] : modes_of("all")) {
    results[name] = bench::run_bench(world, config, bench_options(args, config, mode));
    out["modes"][name] = to_json(results[name], args.has("cold"));
    if (world.rank() != 0) continue;
    fmt::print("\n{}\n", name);
    print(results[name], args);
  }
  const Summary summary(results);
  if (world.rank() == 0) {
    fmt::print(
        "\nmeans: forward {:.3f} ms, backward alone {:.3f} ms, step {:.3f} ms, (forward + "
        "backward) / forward {:.2f}\n",
        1e3 * summary.forward, 1e3 * summary.backward, 1e3 * summary.step, summary.ratio());
  }
  out["forward_seconds"] = summary.forward;
  out["backward_seconds"] = summary.backward;
  out["step_seconds"] = summary.step;
  out["forward_backward_over_forward"] = summary.ratio();
  if (args.has("json")) write(world, args.get<std::string>("json"), out.dump(2) + "\n");
  return ExitCode::ok;
}

ExitCode run_one_mode(comm::World& world, const Arguments& args, const train::Config& config,
                      BenchMode mode) {
  const bench::BenchResult result =
      bench::run_bench(world, config, bench_options(args, config, mode));
  const BenchSetup setup = setup_of(config);
  if (world.rank() == 0) {
    print_setup(setup);
    print(result, args);
  }
  if (args.has("memory")) write_memory(world, args.get<std::string>("memory"), result.memory);
  if (args.has("memory-timeline")) write_memory_timeline(world, args, setup, result.memory);
  if (args.has("json")) {
    ordered_json out = head_of(args, setup);
    out.update(to_json(result, args.has("cold")));
    write(world, args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace

ExitCode run_bench(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = bench_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  require_usable(args);
  require_places(world, args, {"json", "memory", "memory-timeline", "machine", "samples"});
  const auto mode = args.get<std::string>("mode");
  const auto modes = modes_of(mode);
  if (args.has("kernel-table")) return run_kernel_table(world, args);
  DeckSource source;
  source.path = args.list("DECK").front();
  source.overrides = args.list("set");
  source.unused = keys_beside_the_step(mode == "data");
  if (mode == "forward" || mode == "decode" || mode == "data") {
    std::ranges::copy(keys_of_training(), std::back_inserter(source.unused));
  }
  const train::Config config = read_config(world, source);
  if (mode == "data") {
    run_bench_of_data(world, args, config, args.get<int>("warmup"), args.get<int>("steps"));
    return ExitCode::ok;
  }
  if (mode == "decode") return run_bench_of_decoding(world, args, config);
  const comm::Watchdog watchdog = train::watch(world, config);
  train::report_threads(world);
  if (args.has("count")) return run_counts(world, args, config);
  if (args.has("machine")) return run_machine(world, args, config);
  if (mode == "all") return run_all_modes(world, args, config);
  return run_one_mode(world, args, config, modes.front().second);
}

}  // namespace hyperslab::cli
