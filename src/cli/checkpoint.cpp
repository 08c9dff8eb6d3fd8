// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "exchange.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/train/setup.hpp"
#include "merge.hpp"
#include "quantize.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

/// The path of the model that adapters are added to, as their deck has it.
std::string base_of(const io::CheckpointReader& reader) {
  return as_stored({reader.meta().deck, reader.folder()}).checkpoint.initial;
}

void print_problems(std::span<const std::string> problems) {
  constexpr std::size_t kMostShown = 50;
  for (const std::string& problem : problems.first(std::min(problems.size(), kMostShown))) {
    fmt::print("{}\n", printable(problem));
  }
  if (problems.size() > kMostShown) fmt::print("... and {} more\n", problems.size() - kMostShown);
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
    print_problems(problems);
    if (problems.empty()) {
      fmt::print("{}: sound, {} tensors, {} bytes\n", reader.folder(), reader.tensors().size(),
                 reader.bytes());
    }
    sound = sound && problems.empty();
  }
  return sound;
}

void exchange(comm::World& world, const std::string& action, const Arguments& args) {
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "checkpoint " + action +
                                     " runs on one rank; start it without "
                                     "mpirun")
        .on_all_ranks();
  }
  if (action == "export") return export_checkpoint(args);
  if (action == "quantize") return quantize_checkpoint(world, args);
  action == "merge" ? merge_checkpoint(args) : import_checkpoint(world, args);
}

}  // namespace

Arguments checkpoint_arguments() {
  Arguments args(
      "usage: hyperslab checkpoint info|verify DIR... | export DIR --output FOLDER [options] | "
      "import FOLDER --output DIR [--deck DECK | --dropout P | --base DIR] | merge DIR --output "
      "DIR "
      "[--base DIR] | quantize DIR --weights int8|int4 --output DIR [--group N] [--activations A] "
      "[--calibrate N] shows what checkpoints hold, checks "
      "every block and that every tensor is covered exactly once, makes a folder of transformers "
      "(GPT2LMHeadModel, LlamaForCausalLM), or makes a checkpoint of such a folder, with a "
      "deck.yaml that trains from its weights (checkpoint.initial) in DIR/run. Adapters leave as a "
      "folder of PEFT (LoRA) and come in from one, for the base that --base names; merge adds them "
      "to the weights of their base and makes a checkpoint of the whole model; quantize stores the "
      "blocks' matrices of a model in few bits, which eval, generate and bench read as they are");
  args.positional("ACTION");
  args.positional("DIR", true);
  add_exchange_options(args);
  add_quantize_options(args);
  return args;
}

ExitCode run_checkpoint(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = checkpoint_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const std::string action = args.list("ACTION").front();
  if (action == "export" || action == "import" || action == "merge" || action == "quantize") {
    exchange(world, action, args);
    return ExitCode::ok;
  }
  if (action != "info" && action != "verify") {
    throw Error(ExitCode::usage,
                "checkpoint: there is no action '" + action +
                    "'; the actions are info, verify, export, import, merge and quantize")
        .on_all_ranks();
  }
  bool sound = true;
  comm::agree(world, [&] {
    if (world.rank() == 0) sound = look_at(action, args.list("DIR"));
  });
  return world.all(sound) ? ExitCode::ok : ExitCode::checkpoint;
}

}  // namespace hyperslab::cli
