// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "hyperslab/train/run.hpp"

namespace hyperslab::cli {
namespace {

struct Result {
  std::string checkpoint;
  std::int64_t step = 0;
  train::Evaluation evaluation;
};

/// Loss of the deck's validation files, or of its training files where it has no others.
Result evaluate(comm::World& world, const train::Config& config, const std::string& checkpoint) {
  std::unique_ptr<io::TokenSource> tokens;
  std::unique_ptr<io::Samples> samples;
  std::int64_t step = 0;
  train::TrainerOptions options;
  train::agree(world, [&] { options = train::trainer_options(config, world.local_rank(), false); });
  const std::unique_ptr<mesh::Mesh> mesh = train::make_mesh(world, config, options.device);
  std::unique_ptr<train::Trainer> trainer;  // goes before the mesh
  train::agree(world, [&] {
    io::DataTokens data = io::open_data(config.data, config.model.vocabulary, config.run.seed,
                                        io::DataPart::validation);
    if (!data.validation) {  // nothing is set aside: the training tokens themselves
      data = io::open_data(config.data, config.model.vocabulary, config.run.seed);
    }
    tokens = std::move(data.validation ? data.validation : data.train);
    const bool generated = tokens->description().starts_with("synthetic");
    if (generated && config.train.validate_batches == 0) {
      throw Error(ExitCode::usage,
                  "eval of synthetic tokens has no end: set train.validate_batches");
    }
    samples = std::make_unique<io::Samples>(*tokens, io::Sampling::blocks, config.model.context,
                                            config.run.seed, false, config.data.ignore_token);
    const io::CheckpointReader reader(checkpoint);
    step = reader.meta().step;
    const model::MemoryPlan plan = train::make_plan(config, options, world.rank()).memory;
    trainer = std::make_unique<train::Trainer>(config, *mesh, options, &plan);
    trainer->initialize();
    trainer->load(reader);  // which names every tensor of another shape
    train::require_same_model(reader.meta(), config.model, reader.folder());
  });
  trainer->share_values();
  std::int64_t count = samples->size();
  if (config.train.validate_batches > 0) {
    count = std::min(count, config.train.validate_batches * config.train.microbatch);
  }
  return {checkpoint, step, trainer->evaluate(*samples, count, world)};
}

nlohmann::ordered_json to_json(const Result& result) {
  nlohmann::ordered_json line;
  line["checkpoint"] = result.checkpoint;
  line["step"] = result.step;
  line["loss"] = result.evaluation.loss();
  line["perplexity"] = result.evaluation.perplexity();
  line["token_accuracy"] = result.evaluation.token_accuracy();
  line["tokens"] = result.evaluation.tokens;
  return line;
}

}  // namespace

ExitCode run_eval(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args(
      "usage: [mpirun -np N] hyperslab eval DECK --checkpoint DIR [--set k=v]... prints loss, "
      "perplexity and token accuracy of the deck's validation files");
  add_deck_options(args);
  args.add()(
      "checkpoint", po::value<std::vector<std::string>>()->composing()->required(),
      "a step's folder, or a directory of them, of which the newest is taken; several make a "
      "table")("json", po::value<std::string>(), "also write the figures to this file");
  args.positional("DECK");
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const train::Config config =
      read_config(world, {args.list("DECK").front(), args.list("set"), false, false});
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& checkpoint : args.list("checkpoint")) {
    const Result result = evaluate(world, config, checkpoint);
    all.push_back(to_json(result));
    if (world.rank() != 0) continue;
    if (all.size() == 1) {
      fmt::print("{:>8} {:>10} {:>12} {:>15} {:>12}  {}\n", "step", "loss", "perplexity",
                 "token accuracy", "tokens", "checkpoint");
    }
    fmt::print("{:>8} {:>10.6f} {:>12.4f} {:>13.2f} % {:>12.0f}  {}\n", result.step,
               result.evaluation.loss(), result.evaluation.perplexity(),
               100.0 * result.evaluation.token_accuracy(), result.evaluation.tokens, checkpoint);
  }
  if (args.has("json")) {
    train::agree(world, [&] {
      if (world.rank() != 0) return;
      const auto path = args.get<std::string>("json");
      std::ofstream file(path);
      file << (all.size() == 1 ? all[0] : all).dump(2) << '\n';
      if (!file.flush()) throw Error(ExitCode::storage, path + ": cannot write this file");
    });
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
