// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/train/run.hpp"

namespace hyperslab::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"train", "train a model as a deck says", run_train},
      {"eval", "loss, perplexity and token accuracy of a checkpoint", run_eval},
      {"generate", "continue a text", run_generate},
      {"bench", "time forward, forward-backward or whole steps", run_bench},
      {"tokenize", "turn text files into token files", run_tokenize},
      {"checkpoint", "look at, verify, export and import checkpoints", run_checkpoint},
      {"parity", "train under two layouts and compare them tensor by tensor", run_parity},
      {"plan", "layout, memory and pipeline schedule of a run that is not started", run_plan},
  };
  return all;
}

Arguments::Arguments(std::string usage) : usage_(std::move(usage)) {
  visible_.add_options()("help", "show this text");
}

void Arguments::positional(const std::string& name, bool many) {
  hidden_.add_options()(name.c_str(), po::value<std::vector<std::string>>());
  places_.add(name.c_str(), many ? -1 : 1);
  required_.push_back(name);
}

bool Arguments::parse(const comm::World& world, const std::vector<std::string>& arguments) {
  po::options_description all;
  all.add(visible_).add(hidden_);
  try {
    po::store(po::command_line_parser(arguments).options(all).positional(places_).run(), values_);
    if (!has("help")) po::notify(values_);  // which complains about what is missing
  } catch (const po::error& error) {
    throw Error(ExitCode::usage, fmt::format("{}; {}", error.what(), usage_)).on_all_ranks();
  }
  if (has("help")) {
    if (world.rank() == 0) std::cout << usage_ << "\n\n" << visible_ << std::flush;
    return false;
  }
  for (const std::string& name : required_) {
    if (!has(name)) {
      throw Error(ExitCode::usage, fmt::format("{} is missing; {}", name, usage_)).on_all_ranks();
    }
  }
  return true;
}

std::vector<std::string> Arguments::list(const std::string& name) const {
  return has(name) ? get<std::vector<std::string>>(name) : std::vector<std::string>();
}

void add_deck_options(Arguments& arguments) {
  arguments.add()("set", po::value<std::vector<std::string>>()->composing(),
                  "override a deck key: path.to.key=value (may be repeated)");
}

train::Config read_config(comm::World& world, const DeckSource& source) {
  std::string text;
  train::agree(world, [&] {
    if (world.rank() != 0) return;
    std::error_code unknown;
    if (std::filesystem::is_directory(source.path, unknown)) {
      throw Error(ExitCode::usage, source.path + ": this is a folder, wanted a deck (a YAML file)");
    }
    std::ifstream file(source.path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
    if (!file) {
      throw Error(ExitCode::usage,
                  fmt::format("{}: cannot read this deck: {}", source.path, std::strerror(errno)));
    }
  });
  text = world.broadcast(text);
  deck::Surroundings surroundings;
  surroundings.ranks = source.any_ranks ? 0 : source.ranks > 0 ? source.ranks : world.size();
  surroundings.for_training = source.for_training;
  surroundings.has_cuda_device = source.device == "cuda" || cuda_device_count() > 0;
  surroundings.has_cuda_build = source.device == "cuda" || kHasCuda;
  std::vector<std::string> overrides = source.overrides;
  if (!source.device.empty()) overrides.push_back("run.device=" + source.device);
  try {
    return deck::read_deck(text, source.path, overrides, surroundings);
  } catch (const Error& error) {
    throw error.on_all_ranks();
  }
}

}  // namespace hyperslab::cli
