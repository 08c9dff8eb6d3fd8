// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/trace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "../command.hpp"

namespace hyperslab::cli {
namespace {

/// A run directory, or the name of one in runs/.
std::string run_directory(const std::string& run) {
  std::error_code error;
  for (const std::string& path : {run, "runs/" + run}) {
    if (std::filesystem::is_directory(path, error)) return path;
  }
  throw Error(ExitCode::usage,
              fmt::format("{}: there is no such run directory, nor runs/{}", run, run));
}

void print(const io::TraceSummary& summary, const std::string& output) {
  fmt::print("{}: {} of {}: {} rank{}, {} event{}, {} message{}\n", output,
             summary.steps.size() == 1 ? fmt::format("step {}", summary.steps.front())
                                       : fmt::format("steps {}", fmt::join(summary.steps, ", ")),
             summary.start, summary.ranks, summary.ranks == 1 ? "" : "s", summary.events,
             summary.events == 1 ? "" : "s", summary.flows, summary.flows == 1 ? "" : "s");
  if (summary.clock_error_seconds > 0) {
    fmt::print("clocks of hosts agree within {:.1f} us\n", 1e6 * summary.clock_error_seconds);
  }
  if (summary.lost > 0) {
    fmt::print(
        "{} events found no room while the run recorded: the ends of traced steps lack them\n",
        summary.lost);
  }
  fmt::print("open it at https://ui.perfetto.dev, or in chrome://tracing\n");
}

}  // namespace

Arguments trace_arguments() {
  Arguments args(
      "hyperslab trace RUN --output FILE.json",
      "Writes the traced steps of a run (timing.trace_steps), with all its ranks, for Perfetto.");
  args.add()("output", po::value<std::string>()->required(), "the file to write");
  args.positional("RUN");
  return args;
}

ExitCode run_trace(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = trace_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    const auto output = args.get<std::string>("output");
    print(io::write_trace(run_directory(args.list("RUN").front()), output), output);
  });
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
