// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/philox.hpp"
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

std::string differences(const std::vector<std::string>& values) {
  std::vector<std::pair<std::string_view, std::vector<std::size_t>>> groups;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto found =
        std::ranges::find(groups, values[rank], [](const auto& each) { return each.first; });
    if (found == groups.end()) found = groups.insert(found, {values[rank], {}});
    found->second.push_back(rank);
  }
  if (groups.size() < 2) return {};
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text +=
        fmt::format("{}of rank{} {} {}'{}'", text.empty() ? "" : ", ", ranks.size() == 1 ? "" : "s",
                    fmt::join(ranks, ", "), text.empty() ? "is " : "", value);
  }
  return text;
}

namespace {

std::string read_deck_text(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    throw Error(ExitCode::usage, path + ": this is a folder, wanted a deck (a YAML file)");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    throw Error(ExitCode::usage,
                fmt::format("{}: cannot read this deck: {}", path, std::strerror(errno)));
  }
  return text;
}

/// Hosts need not share a disk, but where they have the deck, it is the same.
void require_one_deck(comm::World& world, const std::string& path, const std::string& text) {
  std::string mine = text;
  try {
    if (world.rank() != 0) mine = read_deck_text(path);
  } catch (const Error&) {
    mine = text;
  }
  const std::string differs =
      differences(world.all_gather(fmt::format("{:016x}", name_hash(mine))));
  if (differs.empty()) return;
  throw Error(ExitCode::usage,
              fmt::format("{}: the ranks find different decks (hash {}); bring one "
                          "deck to all hosts",
                          path, differs))
      .on_all_ranks();
}

}  // namespace

train::Config read_config(comm::World& world, const DeckSource& source) {
  std::string text;
  train::agree(world, [&] {
    if (world.rank() == 0) text = read_deck_text(source.path);
  });
  text = world.broadcast(text);
  require_one_deck(world, source.path, text);
  deck::Surroundings surroundings;
  surroundings.ranks = source.any_ranks ? 0 : source.ranks > 0 ? source.ranks : world.size();
  surroundings.for_training = source.for_training;
  surroundings.has_cuda_device = source.device == "cuda" || cuda_device_count() > 0;
  surroundings.has_cuda_build = source.device == "cuda" || kHasCuda;
  std::vector<std::string> overrides = source.overrides;
  if (!source.device.empty()) overrides.push_back("run.device=" + source.device);
  try {
    std::string cuts;
    train::Config config = deck::read_deck(text, source.path, overrides, surroundings, &cuts);
    if (!cuts.empty()) log::info("to fit --set: " + cuts);
    return config;
  } catch (const Error& error) {
    throw error.on_all_ranks();
  }
}

}  // namespace hyperslab::cli
