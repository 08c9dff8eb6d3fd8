// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/parity/parity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../command.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

/// One layout to compare with the reference.
struct Candidate {
  std::string name;
  train::Config config;
};

/// Lines of `--set` overrides, separated by blanks; '#' begins a comment.
std::vector<Candidate> read_matrix(comm::World& world, const std::string& deck,
                                   const std::vector<std::string>& overrides,
                                   const std::string& path) {
  std::string text;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown) &&
        !std::filesystem::is_regular_file(path, unknown)) {
      throw Error(ExitCode::usage, path + ": is no regular file, expected lines of --set values");
    }
    std::ifstream file(path);
    text.assign(std::istreambuf_iterator<char>(file), {});
    if (!file) throw Error(ExitCode::usage, path + ": cannot read this file");
  });
  std::istringstream lines(world.broadcast(text));
  std::vector<Candidate> out;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<std::string> sets = overrides;
    std::string name;
    for (std::string word; words >> word; name += (name.empty() ? "" : " ") + word) {
      sets.push_back(word);
    }
    if (name.empty()) continue;
    out.push_back({name, read_config(world, {deck, sets, true, true})});
  }
  if (out.empty()) throw Error(ExitCode::usage, path + ": holds no layout").on_all_ranks();
  return out;
}

void print_report(const Candidate& candidate, const parity::ParityReport& report,
                  const parity::ParityTolerance& limits, std::int64_t steps, std::int64_t rows) {
  const std::string losses =
      report.worst_step == 0
          ? fmt::format("losses equal in {} steps", steps)
          : fmt::format("loss {:.2e} (step {})", report.loss_difference, report.worst_step);
  const std::string late =
      steps > parity::kEarlySteps
          ? fmt::format(", {:.0e} after step {}", limits.late_loss, parity::kEarlySteps)
          : "";
  fmt::print(
      "{}: {}  largest gradient difference {:.2e} ({}), {}; limits {:.0e} and {:.0e}{}; {}\n",
      report.agrees ? "agrees " : "DIFFERS", candidate.name,
      report.rows.empty() ? 0.0 : report.rows.front().difference,
      report.rows.empty() ? "-" : report.rows.front().tensor, losses, limits.gradient, limits.loss,
      late, mesh::describe(candidate.config.parallel));
  for (std::int64_t i = 0; i < std::min<std::int64_t>(rows, std::ssize(report.rows)); ++i) {
    const auto& row = report.rows[static_cast<std::size_t>(i)];
    fmt::print("  {:.2e}  {}\n", row.difference, row.tensor);
  }
}

nlohmann::ordered_json to_json(const Candidate& candidate, const parity::ParityReport& report,
                               const parity::ParityTolerance& limits) {
  nlohmann::ordered_json tensors;
  for (const auto& [tensor, difference] : report.rows) tensors[tensor] = difference;
  return {{"name", candidate.name},
          {"layout", mesh::describe(candidate.config.parallel)},
          {"agrees", report.agrees},
          {"gradient_limit", limits.gradient},
          {"loss_limit", limits.loss},
          {"late_loss_limit", limits.late_loss},
          {"loss_difference", report.loss_difference},
          {"worst_step", report.worst_step},
          {"gradient_differences", tensors}};
}

/// Throws Error(usage) if the decks would train different models or on different batches.
void require_comparable(const train::Config& reference, const Candidate& candidate) {
  const train::Config& other = candidate.config;
  const auto refuse = [&](const std::string& what, const std::string& a, const std::string& b) {
    throw Error(ExitCode::usage,
                fmt::format("{}: parity compares layouts of one training run, and {} differs: '{}' "
                            "and '{}'",
                            candidate.name, what, a, b))
        .on_all_ranks();
  };
  for (const auto& [a, b] :
       model::differing_choices(model::identity(reference.model), model::identity(other.model))) {
    refuse("the model", a, b);
  }
  if (other.train.global_batch != reference.train.global_batch) {
    refuse("train.global_batch", std::to_string(reference.train.global_batch),
           std::to_string(other.train.global_batch));
  }
  if (other.data.train != reference.data.train) {
    refuse("data.train", fmt::format("{}", fmt::join(reference.data.train, " ")),
           fmt::format("{}", fmt::join(other.data.train, " ")));
  }
}

/// True if all candidates agree with the reference; rank 0 reports.
bool compare_all(comm::World& world, const Arguments& args, const train::Config& reference,
                 const std::vector<Candidate>& candidates) {
  const auto steps = args.get<std::int64_t>("steps");
  if (steps < 1) {
    throw Error(ExitCode::usage, fmt::format("--steps is {}, expected 1 or more", steps))
        .on_all_ranks();
  }
  for (const Candidate& candidate : candidates) require_comparable(reference, candidate);
  const parity::LayoutTrace expected =
      parity::trace_layout(world, reference, steps, legal_changes(reference));
  bool agrees = true;
  nlohmann::ordered_json out = {{"steps", steps},
                                {"reference", mesh::describe(reference.parallel)},
                                {"layouts", nlohmann::ordered_json::array()}};
  for (const Candidate& candidate : candidates) {
    const parity::LayoutTrace found =
        parity::trace_layout(world, candidate.config, steps, legal_changes(candidate.config));
    if (world.rank() != 0) continue;
    const parity::ParityTolerance limits = parity::parity_tolerance(candidate.config.precision);
    const parity::ParityReport report = parity::compare(expected, found, limits);
    agrees = agrees && report.agrees;
    const bool brief = args.has("matrix") && report.agrees;
    print_report(candidate, report, limits, steps, brief ? 0 : args.get<std::int64_t>("rows"));
    out["layouts"].push_back(to_json(candidate, report, limits));
  }
  if (world.rank() == 0 && args.has("json")) {
    io::write_text_file(args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return world.all(agrees);
}

}  // namespace

Arguments parity_arguments() {
  Arguments args(
      "mpirun -np N hyperslab parity DECK_A DECK_B [--steps n] [--set k=v]...\n"
      "mpirun -np N hyperslab parity DECK --matrix FILE [--steps n]\n"
      "                              [--set k=v]...",
      "Trains under both layouts from one seed and compares, tensor by tensor, the gradients of "
      "step 1, and the losses. Every line of FILE is a layout as overrides of DECK, such as "
      "`parallel.data=2 parallel.tensor=2`. Differences are relative to the largest element of a "
      "tensor, or to a thousandth of the largest of all weights or all biases: attention.key.bias "
      "without rope has a gradient of zero in theory, as softmax does not see what all keys share, "
      "so that what is left is rounding, which Adam scales up.");
  add_deck_options(args);
  args.add()("matrix", po::value<std::string>(), "layouts to compare DECK with, a line each")(
      "steps", po::value<std::int64_t>()->default_value(10), "steps to train")(
      "rows", po::value<std::int64_t>()->default_value(10), "tensors to list, of a pair")(
      "json", po::value<std::string>(), "also write all differences and limits to this file");
  args.positional("DECK", true);
  return args;
}

ExitCode run_parity(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = parity_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const std::vector<std::string> decks = args.list("DECK");
  const bool matrix = args.has("matrix");
  if (decks.size() != (matrix ? 1U : 2U)) {
    throw Error(ExitCode::usage, "parity compares two decks, or one deck with --matrix FILE")
        .on_all_ranks();
  }
  require_places(world, args, {"json"});
  const std::vector<std::string> sets = args.list("set");
  const auto config_of = [&](const std::string& deck) {
    return read_config(world, {deck, sets, true, true});
  };
  const train::Config reference = config_of(decks.front());
  const comm::Watchdog watchdog(world, {reference.run.hang_timeout_seconds, ""});  // many layouts
  train::report_threads(world);
  std::vector<Candidate> candidates;
  if (matrix) {
    candidates = read_matrix(world, decks.front(), sets, args.get<std::string>("matrix"));
  } else {
    candidates.push_back({decks.back(), config_of(decks.back())});
  }
  if (!compare_all(world, args, reference, candidates)) {
    throw Error(ExitCode::numerics, "the layouts do not agree within tolerance").on_all_ranks();
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
