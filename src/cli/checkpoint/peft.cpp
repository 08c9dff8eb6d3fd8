// SPDX-License-Identifier: Apache-2.0
#include "peft.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "exchange.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/interop/peft.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

/// A deck that goes on with the adapters in `output`, which are the step 0 of its run.
train::Config config_for(const train::Config& base, const nn::AdapterConfig& adapter,
                         const std::string& output) {
  train::Config config;
  config.run.name = last_name(output);
  config.run.directory = absolute(output + "/run");
  config.checkpoint.directory = absolute(output);
  config.model = base.model;
  config.adapter = adapter;
  config.train.global_batch = 1;
  config.train.microbatch = 1;
  return config;
}

/// The user's deck, which must mean the base's model and the folder's adapters.
train::Config config_of_user(comm::World& world, const std::string& path,
                             const io::CheckpointReader& base, const nn::AdapterConfig& adapter) {
  train::Config config = read_config(world, {path, {}, false, true});
  train::require_same_model(base.meta(), config.model, base.folder());
  train::Config expected = config;
  expected.adapter = adapter;
  expected.adapter.dropout = config.adapter.dropout;  // decides no result
  if (expected.adapter == config.adapter) return config;
  const std::string wanted = deck::to_yaml(expected);
  const auto begin = wanted.find("adapter:\n");
  const auto end = wanted.find('\n', wanted.find("  targets:", begin));
  refuse(fmt::format("{}: section adapter is not that of the folder, which is\n{}", path,
                     wanted.substr(begin, end - begin)));
}

}  // namespace

void export_adapters(const Arguments& args, const io::CheckpointReader& reader) {
  if (args.has("vocab")) refuse("--vocab does not go with adapters, whose folder has no tokenizer");
  interop::PeftExportOptions options;
  options.output = output_of(args);
  options.dtype = dtype_of_name(args.get<std::string>("dtype"));
  if (args.has("base-name")) options.base_name = args.get<std::string>("base-name");
  const train::Config config = as_stored(stored_deck(reader));
  interop::export_peft(config.model, config.adapter, reader, options);
  fmt::print("{}: step {} of {}, adapters of rank {} in {}\n", options.output, reader.meta().step,
             reader.folder(), config.adapter.rank, args.get<std::string>("dtype"));
}

void import_adapters(comm::World& world, const Arguments& args) {
  const std::string folder = only_folder(args);
  const std::string output = output_of(args);
  if (!args.has("base")) {
    refuse(folder + ": it holds adapters: name the checkpoint of their base with --base DIR");
  }
  if (args.has("dropout")) refuse("--dropout does not go with adapters, whose base has its own");
  if (args.has("ignore-config-key")) {
    refuse("--ignore-config-key goes with a whole model, and this is a folder of adapters");
  }
  const io::CheckpointReader base(args.get<std::string>("base"));
  train::require_whole_model(base);
  const train::Config base_config = as_stored(stored_deck(base));
  const interop::PeftFolder adapters(folder, base_config.model);
  train::Config config = args.has("deck") ? config_of_user(world, args.get<std::string>("deck"),
                                                           base, adapters.adapter())
                                          : config_for(base_config, adapters.adapter(), output);
  if (config.data.vocabulary.empty()) {
    const std::string vocabulary = stored_vocabulary_path(base, base_config);
    const bool is_path = !vocabulary.empty() && vocabulary != "bytes";
    config.data.vocabulary = is_path ? absolute(vocabulary) : vocabulary;
  }
  config.checkpoint.initial = absolute(base.folder());
  io::CheckpointMeta meta;
  meta.deck = deck::to_yaml(config);
  meta.started_in = std::filesystem::current_path().string();
  meta.model = model::identity(config.model);
  meta.base_fingerprint = io::parameter_fingerprint(base);
  if (!config.data.vocabulary.empty()) {
    meta.vocabulary = io::read_vocabulary_files(config.data.vocabulary);
  }
  const ImportLocks locks(output, world.host());
  adapters.import(output, meta);
  io::write_text_file(output + "/deck.yaml", meta.deck);
  fmt::print(
      "{0}: adapters of rank {1} for {2}; try: hyperslab eval {0}/deck.yaml --checkpoint {0} --set "
      "data.validation=[TOKENS], or train them on: hyperslab train {0}/deck.yaml --set "
      "data.train=[TOKENS] --set train.steps=N\n",
      output, config.adapter.rank, base.folder());
}

}  // namespace hyperslab::cli
