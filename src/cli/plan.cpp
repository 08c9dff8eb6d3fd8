// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "command.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/pipeline/diagram.hpp"
#include "hyperslab/pipeline/validate.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::cli {
namespace {

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

void print_layout(const train::Config& config) {
  fmt::print("layout        {}, {} ranks\n", mesh::describe(config.parallel),
             config.parallel.ranks());
  fmt::print("step          {} samples: {} on each data rank, of {} samples x {} tokens\n",
             config.train.global_batch,
             config.microbatches() == 1 ? "1 microbatch"
                                        : fmt::format("{} microbatches", config.microbatches()),
             config.train.microbatch, config.model.context);
}

/// "4 3 2 1"; with several chunks "5+4 4+3 ..."
std::string slots_text(const pipeline::Program& program) {
  std::string text;
  for (const std::vector<int>& chunks : program.slots) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}", fmt::join(chunks, "+"));
  }
  return text;
}

void print_schedule(const pipeline::Program& program) {
  const double ideal = pipeline::ideal_idle_fraction(program.schedule, program.stages,
                                                     program.virtual_stages, program.microbatches);
  const double simulated = pipeline::simulate(program, {}).idle_fraction();
  fmt::print("schedule      {}, {} stages x {} chunks, {} microbatches\n",
             name_of(program.schedule), program.stages, program.virtual_stages,
             program.microbatches);
  fmt::print("idle          {:.2f} % of the busy time in theory, {:.2f} % simulated\n", 100 * ideal,
             100 * simulated);
  fmt::print("slots         {} (microbatches that a pipeline rank keeps, per chunk)\n\n",
             slots_text(program));
  fmt::print("{}\n", pipeline::diagram(program));
}

/// One row for each pipeline rank; ranks along the other axes hold the same.
void print_memory(const train::Config& config) {
  const train::TrainerOptions options = train::trainer_options(config, 0, true);
  fmt::print("{:<10} {:>10} {:>10} {:>10} {:>11} {:>10} {:>10} {:>10}\n", "MiB", "parameters",
             "gradients", "optimizer", "activations", "scratch", "workspace", "total");
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::world_rank_of(config.parallel, {.pipeline = stage});
    const model::MemoryPlan memory = train::make_plan(config, options, rank).memory;
    fmt::print("{:<10} {:>10.1f} {:>10.1f} {:>10.1f} {:>11.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n",
               fmt::format("pipeline {}", stage), mebibytes(memory.parameters),
               mebibytes(memory.gradients), mebibytes(memory.optimizer),
               mebibytes(memory.activations), mebibytes(memory.scratch),
               mebibytes(memory.workspace), mebibytes(memory.total()));
  }
}

}  // namespace

ExitCode run_plan(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args(
      "usage: hyperslab plan DECK [--ranks N] [--schedule] [--set k=v]... shows what a run would "
      "hold and do, without starting it");
  add_deck_options(args);
  args.add()("ranks", po::value<int>(), "ranks of the run (default: as many as the deck's layout)")(
      "schedule", "draw the pipeline's passes in time: F forward, B backward, I and W its parts");
  args.positional("DECK");
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const int ranks = args.has("ranks") ? args.get<int>("ranks") : 0;
  if (args.has("ranks") && ranks < 1) {
    throw Error(ExitCode::usage, fmt::format("--ranks is {}, wanted 1 or more", ranks))
        .on_all_ranks();
  }
  const train::Config config = read_config(world, {.path = args.list("DECK").front(),
                                                   .overrides = args.list("set"),
                                                   .for_training = true,
                                                   .any_ranks = ranks == 0,
                                                   .ranks = ranks});
  if (world.rank() != 0) return ExitCode::ok;
  print_layout(config);
  const mesh::ParallelConfig& parallel = config.parallel;
  if (args.has("schedule")) {
    print_schedule(pipeline::make_program(pipeline::parse_schedule(parallel.schedule),
                                          parallel.pipeline, parallel.virtual_stages,
                                          static_cast<int>(config.microbatches())));
  }
  print_memory(config);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
