// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "diff.hpp"
#include "exchange.hpp"
#include "hyperslab/core/printable.hpp"
#include "merge.hpp"
#include "prune.hpp"
#include "quantize.hpp"
#include "stored.hpp"
#include "upcycle.hpp"

namespace hyperslab::cli {
namespace {

/// The path of the model that adapters are added to, as their deck has it.
std::string base_of(const io::CheckpointReader& reader) {
  return as_stored(stored_deck(reader)).checkpoint.initial;
}

void print_problems(const std::string& folder, std::span<const std::string> problems) {
  constexpr std::size_t kMostShown = 50;
  for (const std::string& problem : problems.first(std::min(problems.size(), kMostShown))) {
    fmt::print(stderr, "{}\n", printable(problem));
  }
  if (problems.size() > kMostShown) {
    fmt::print(stderr, "... and {} more\n", problems.size() - kMostShown);
  }
  fmt::print(stderr,
             "hyperslab: {}: the checkpoint is damaged; remove this folder, and a start resumes "
             "from the step before it, or restore it from a copy\n",
             printable(folder));
}

/// False if a checkpoint is damaged.
bool look_at(const std::string& action, const std::vector<std::string>& directories) {
  bool sound = true;
  for (const std::string& directory : directories) {
    const io::CheckpointReader reader(directory);
    if (action == "info") {
      const bool has_base = reader.meta().base_fingerprint.has_value();
      fmt::print("{}", io::describe(reader, has_base ? base_of(reader) : ""));
      continue;
    }
    const std::vector<std::string> problems = reader.verify();
    if (!problems.empty()) {
      print_problems(reader.folder(), problems);
    } else {
      fmt::print("{}: sound, {} tensors, {} bytes\n", reader.folder(), reader.tensors().size(),
                 reader.bytes());
    }
    sound = sound && problems.empty();
  }
  return sound;
}

/// False if checkpoints differ.
bool exchange(comm::World& world, const std::string& action, const Arguments& args) {
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "checkpoint " + action +
                                     " runs on one rank; start it without "
                                     "mpirun")
        .on_all_ranks();
  }
  if (action == "diff") return diff_checkpoints(args);
  if (action == "export") export_checkpoint(args);
  if (action == "import") import_checkpoint(world, args);
  if (action == "merge") merge_checkpoint(args);
  if (action == "prune") prune_checkpoints(world, args);
  if (action == "quantize") quantize_checkpoint(world, args);
  if (action == "upcycle") upcycle_checkpoint(world, args);
  return true;
}

}  // namespace

Arguments checkpoint_arguments() {
  Arguments args(
      "hyperslab checkpoint info|verify DIR...\n"
      "hyperslab checkpoint diff A B [--all]\n"
      "hyperslab checkpoint prune DIR --keep N [--keep-every N] [--dry-run]\n"
      "hyperslab checkpoint export DIR --output FOLDER [options]\n"
      "hyperslab checkpoint import FOLDER --output DIR\n"
      "                   [--deck DECK | --dropout P | --base DIR]\n"
      "                   [--ignore-config-key KEY]...\n"
      "hyperslab checkpoint merge DIR --output DIR [--base DIR]\n"
      "hyperslab checkpoint quantize DIR --weights int8|int4 --output DIR\n"
      "                   [--group N] [--activations A]\n"
      "                   [--calibrate N [--set data.train=[FILE]]]\n"
      "hyperslab checkpoint upcycle DIR --experts N --output DIR\n"
      "                   [--active K] [--seed S]",
      "info shows what checkpoints hold.\n"
      "verify checks every block, and that every tensor is covered exactly once.\n"
      "diff says how two differ (exit code 4 if they do).\n"
      "prune removes old ones of a run that is not running.\n"
      "export makes a folder of transformers (its classes: docs/models.md), of adapters a folder "
      "of PEFT (LoRA).\n"
      "import makes a checkpoint of such a folder, with a deck.yaml that trains from its weights "
      "(checkpoint.initial) in DIR/run; adapters come in for the base that --base names.\n"
      "merge adds adapters to the weights of their base and makes a checkpoint of the whole "
      "model.\n"
      "quantize stores the blocks' matrices in quantized form, which eval, generate and bench "
      "read as they are.\n"
      "upcycle makes a mixture of experts of a model without any: every expert is a copy of the "
      "feed-forward network of its layer, so that the loss stays; a deck.yaml trains from it.");
  args.positional("ACTION");
  args.positional("DIR", true);
  add_exchange_options(args);
  add_quantize_options(args);
  add_diff_options(args);
  add_prune_options(args);
  add_upcycle_options(args);
  return args;
}

ExitCode run_checkpoint(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = checkpoint_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const std::string action = args.list("ACTION").front();
  if (args.has("set") && action != "quantize") {
    throw Error(ExitCode::usage, "checkpoint: --set goes with quantize").on_all_ranks();
  }
  constexpr std::array<std::string_view, 7> kOfOneRank = {"diff",  "export",   "import", "merge",
                                                          "prune", "quantize", "upcycle"};
  if (std::ranges::find(kOfOneRank, action) != kOfOneRank.end()) {
    return exchange(world, action, args) ? ExitCode::ok : ExitCode::checkpoint;
  }
  if (action != "info" && action != "verify") {
    throw Error(ExitCode::usage,
                "checkpoint: there is no action '" + action +
                    "'; the actions are info, verify, diff, prune, export, import, merge, "
                    "quantize and upcycle")
        .on_all_ranks();
  }
  bool sound = true;
  comm::agree(world, [&] {
    if (world.rank() == 0) sound = look_at(action, args.list("DIR"));
  });
  return world.all(sound) ? ExitCode::ok : ExitCode::checkpoint;
}

}  // namespace hyperslab::cli
