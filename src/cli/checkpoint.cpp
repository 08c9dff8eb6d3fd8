// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/checkpoint.hpp"

#include <fmt/format.h>

#include "command.hpp"
#include "hyperslab/train/run.hpp"

namespace hyperslab::cli {
namespace {

/// False where a checkpoint is damaged.
bool act(const std::string& action, const std::vector<std::string>& directories) {
  bool sound = true;
  for (const std::string& directory : directories) {
    const io::CheckpointReader reader(directory);
    if (action == "info") {
      fmt::print("{}", io::describe(reader));
      continue;
    }
    const std::vector<std::string> problems = reader.verify();
    for (const std::string& problem : problems) fmt::print("{}\n", problem);
    if (problems.empty()) {
      fmt::print("{}: sound, {} tensors, {} bytes\n", reader.folder(), reader.tensors().size(),
                 reader.bytes());
    }
    sound = sound && problems.empty();
  }
  return sound;
}

}  // namespace

ExitCode run_checkpoint(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args(
      "usage: hyperslab checkpoint info|verify DIR... shows what checkpoints hold, or checks every "
      "block and that every tensor is covered exactly once");
  args.positional("ACTION");
  args.positional("DIR", true);
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const std::string action = args.list("ACTION").front();
  if (action != "info" && action != "verify") {
    throw Error(ExitCode::usage,
                "checkpoint: there is no action '" + action + "'; the actions are info and verify")
        .on_all_ranks();
  }
  bool sound = true;
  train::agree(world, [&] {
    if (world.rank() == 0) sound = act(action, args.list("DIR"));
  });
  return world.all(sound) ? ExitCode::ok : ExitCode::checkpoint;
}

}  // namespace hyperslab::cli
