// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "../command.hpp"
#include "../planned.hpp"
#include "../start/start_command.hpp"
#include "hyperslab/comm/time_limit.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/run/run.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

const double kProcessStarted = now_seconds();
volatile int stop_signal = 0;  // the handler only sets it; ranks agree on it once a step
volatile std::sig_atomic_t is_interrupted = 0;  // by SIGINT, whatever other signal came since

void request_stop(int signal) {
  const int error = errno;  // the errno of the interrupted code
  stop_signal = signal;
  if (signal == SIGINT && is_interrupted != 0) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  } else if (signal == SIGINT) {
    is_interrupted = 1;
    constexpr std::string_view kText =
        "\nasked to stop (SIGINT): the steps in progress are finished, and a checkpoint of them is "
        "written if there are any; again to end at once\n";
    (void)!write(STDERR_FILENO, kText.data(), kText.size());
  }
  errno = error;
}

double to_mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

run::RunOptions run_options(const Arguments& args) {
  run::RunOptions options;
  options.stop_after = args.get<std::int64_t>("stop-after");
  options.stop_signal = &stop_signal;
  options.started_seconds = kProcessStarted;
  const auto refuse = [](const std::string& text) {
    throw Error(ExitCode::usage, text).on_all_ranks();
  };
  const auto resume = args.get<std::string>("resume");
  if (!resume.empty()) options.resume = deck::parse_resume(resume);
  if (!resume.empty() && !options.resume) {
    refuse("--resume is '" + resume + "'; it can be auto, never or a step");
  }
  if (options.stop_after < 0) refuse("--stop-after must be a step, or 0 (to the end)");
  return options;
}

/// The memory and the computation of a run of this deck, on one rank.
void print_plan(const train::Config& config, bool shapes) {
  const train::TrainerOptions options = planned_options(config);
  const plan::Plan plan = plan::make_plan(config, options, 0);
  if (shapes) {
    constexpr const char* kRow = "{:<12} {:<36} {:<24} {:<5} {:>14}\n";
    fmt::print(kRow, "arena", "name", "shape", "type", "bytes");
    for (const auto& [name, shape] : plan.parameters) {
      fmt::print(kRow, "parameters", name, shape.str(), "f32", shape.numel() * 4);
    }
    for (const auto& [arena, allocation] : plan.allocations) {
      fmt::print(kRow, arena, allocation.label, allocation.shape.str(), name_of(allocation.dtype),
                 allocation.bytes);
    }
    fmt::print("\n");
  }
  const model::MemoryPlan& memory = plan.memory;
  fmt::print("parameters            {}\n", model::parameter_count(config.model));
  fmt::print("in matrix products    {}\n", model::matmul_parameter_count(config.model));
  fmt::print(
      "memory of a rank      {:.1f} MiB: parameters {:.1f}, gradients {:.1f}, optimizer "
      "{:.1f}, activations {:.1f}, scratch {:.1f}, workspace {:.1f}\n",
      to_mebibytes(memory.total()), to_mebibytes(memory.parameters), to_mebibytes(memory.gradients),
      to_mebibytes(memory.optimizer), to_mebibytes(memory.activations),
      to_mebibytes(memory.scratch), to_mebibytes(memory.workspace));
  if (memory.host > 0) fmt::print("on its host           {:.1f} MiB\n", to_mebibytes(memory.host));
  const Work work = plan.ledger.total();
  fmt::print("work of a rank's step {:.3f} GFLOP, {:.3f} GB through memory, {} ops\n",
             1e-9 * work.flops, 1e-9 * work.bytes, work.calls);
}

}  // namespace

void catch_stop_requests(bool caught) {
  for (const int signal : kStopSignals) std::signal(signal, caught ? request_stop : SIG_DFL);
}

Arguments train_arguments() {
  Arguments args("[mpirun -np N] hyperslab train DECK [--set k=v]...", "Trains as DECK says.");
  add_deck_options(args);
  args.add()("resume", po::value<std::string>()->default_value(""),
             "auto: newest checkpoint if there is one; never; or a step (default: the deck's)")(
      "stop-after", po::value<std::int64_t>()->default_value(0),
      "stop cleanly with a checkpoint after this step")(
      "dry-run", "read the deck, print parameters, memory and work, train nothing")(
      "print-deck",
      "print the deck with all its keys as YAML, for any number of ranks, train nothing")(
      "shapes", "with --dry-run: every intermediate's shape, type and bytes");
  args.positional("DECK");
  return args;
}

ExitCode run_train(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = train_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  run::RunOptions options = run_options(args);
  const bool prints = args.has("print-deck");
  const bool dry = prints || args.has("dry-run");
  DeckSource source = {args.list("DECK").front(), args.list("set"), true, dry};
  source.is_yaml = prints;
  const train::Config config =
      dry ? read_planned_config(world, source) : read_config(world, source);
  if (dry) {
    comm::TimeLimit::lift();
    catch_stop_requests(false);
    if (world.rank() == 0 && prints) fmt::print("{}", deck::to_yaml(config));
    if (world.rank() == 0 && !prints) print_plan(config, args.has("shapes"));
    return ExitCode::ok;
  }
  options.is_legal = legal_changes(config);
  options.deck_yaml = deck::to_yaml(config);
  options.command = start_command(world, arguments);
  return run::run_training(world, config, options);
}

}  // namespace hyperslab::cli
