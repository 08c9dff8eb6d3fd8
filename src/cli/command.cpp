// SPDX-License-Identifier: Apache-2.0
#include "command.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/setup.hpp"
#include "start/usage.hpp"

namespace hyperslab::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"train", "train a model as a deck says", run_train, train_arguments},
      {"eval", "loss, accuracy and scores of tasks of checkpoints", run_eval, eval_arguments},
      {"generate", "continue a text", run_generate, generate_arguments},
      {"chat", "talk with a model in a terminal", run_chat, chat_arguments},
      {"serve", "answer completions and chats over HTTP", run_serve, serve_arguments},
      {"bench", "time forward, forward-backward or whole steps", run_bench, bench_arguments},
      {"tokenize", "turn text files into token files", run_tokenize, tokenize_arguments},
      {"pack-images", "turn image folders into shards with an index", run_pack_images,
       pack_images_arguments},
      {"checkpoint", "look at, verify, compare, prune and convert checkpoints", run_checkpoint,
       checkpoint_arguments},
      {"parity", "train under two layouts and compare them tensor by tensor", run_parity,
       parity_arguments},
      {"plan", "layout, memory, schedule and step time of a run that is not started", run_plan,
       plan_arguments},
      {"trace", "traced steps of a run, all ranks, as one trace for Perfetto", run_trace,
       trace_arguments},
  };
  return all;
}

namespace {

/// The name of surplus positional arguments; no option can be written like this.
constexpr const char* kExtra = " extra";

}  // namespace

struct Arguments::Parser {
  boost::program_options::options_description visible{"Options"};
  boost::program_options::options_description hidden;
  boost::program_options::positional_options_description positional;
  boost::program_options::variables_map values;
};

Arguments::Arguments(std::string usage, std::string description)
    : usage_(std::move(usage)),
      description_(std::move(description)),
      parser_(std::make_unique<Parser>()) {
  add()("help,h", "show this text");
}

Arguments::Arguments(Arguments&&) noexcept = default;
Arguments& Arguments::operator=(Arguments&&) noexcept = default;
Arguments::~Arguments() = default;

po::OptionAdder Arguments::add() { return po::OptionAdder(parser_->visible); }

std::vector<std::string> Arguments::option_names() const {
  std::vector<std::string> names;
  for (const auto& option : parser_->visible.options()) names.push_back(option->long_name());
  return names;
}

bool Arguments::has(const std::string& name) const { return parser_->values.count(name) > 0; }

template <class T>
T Arguments::get(const std::string& name) const {
  return parser_->values[name].as<T>();
}
template int Arguments::get(const std::string&) const;
template std::int64_t Arguments::get(const std::string&) const;
template std::uint64_t Arguments::get(const std::string&) const;
template double Arguments::get(const std::string&) const;
template std::string Arguments::get(const std::string&) const;
template std::vector<std::string> Arguments::get(const std::string&) const;

/// "usage: " and each way to call the command, one below the other.
std::string Arguments::usage_lines() const {
  constexpr std::string_view kFirst = "usage: ";
  std::string text(kFirst);
  for (const char c : usage_) {
    text += c;
    if (c == '\n') text.append(kFirst.size(), ' ');
  }
  return text;
}

void Arguments::positional(const std::string& name, bool many) {
  parser_->hidden.add_options()(name.c_str(),
                                boost::program_options::value<std::vector<std::string>>());
  parser_->positional.add(name.c_str(), many ? -1 : 1);
  positional_names_.push_back(name);
  required_.push_back(name);
}

void Arguments::optional_positional(const std::string& name) {
  positional(name);
  required_.pop_back();
}

void Arguments::refuse(const std::string& problem) const {
  constexpr std::string_view kProgram = "hyperslab ";
  const auto begin = std::min(usage_.find(kProgram), usage_.size());
  const auto end = usage_.find(' ', std::min(begin + kProgram.size(), usage_.size()));
  throw Error(ExitCode::usage,
              fmt::format("{} ({} --help explains)", problem, usage_.substr(begin, end - begin)))
      .on_all_ranks();
}

void Arguments::read(const std::vector<std::string>& arguments) {
  namespace bpo = boost::program_options;
  bpo::options_description all;
  all.add(parser_->visible).add(parser_->hidden);
  all.add_options()(kExtra, bpo::value<std::vector<std::string>>());
  auto positional = parser_->positional;
  if (positional.max_total_count() < std::numeric_limits<unsigned>::max()) {
    positional.add(kExtra, -1);
  }
  try {
    bpo::store(bpo::command_line_parser(arguments).options(all).positional(positional).run(),
               parser_->values);
    if (!has("help")) bpo::notify(parser_->values);  // which complains about missing ones
  } catch (const bpo::error& error) {
    refuse(explain(error, parser_->visible, arguments));
  }
}

/// Nothing that was given without an option is too much, an override or missing.
void Arguments::require_positional(const std::vector<std::string>& arguments) const {
  std::vector<std::string> given = list(kExtra);
  for (const auto& name : positional_names_) {
    for (const auto& word : list(name)) given.push_back(word);
  }
  const bool has_set = parser_->visible.find_nothrow("set", false) != nullptr;
  for (const auto& word : given) {
    const auto meant = has_set ? meant_override(word, arguments) : "";
    if (meant.empty()) continue;
    refuse(fmt::format("'{}' is no argument of its own; did you mean {}?", word, meant));
  }
  if (!list(kExtra).empty()) {
    refuse(fmt::format("'{}' is one argument too many", list(kExtra).front()));
  }
  for (const std::string& name : required_) {
    if (!has(name)) refuse(fmt::format("{} is missing", name));
  }
}

bool Arguments::parse(const comm::World& world, const std::vector<std::string>& arguments) {
  read(arguments);
  if (has("help")) {
    if (world.rank() == 0) {
      std::cout << usage_lines() << "\n\n"
                << wrapped(description_) << "\n\n"
                << parser_->visible << std::flush;
    }
    return false;
  }
  require_positional(arguments);
  return true;
}

std::vector<std::string> Arguments::list(const std::string& name) const {
  return has(name) ? get<std::vector<std::string>>(name) : std::vector<std::string>();
}

void add_deck_options(Arguments& arguments) {
  arguments.add()("set", po::value<std::vector<std::string>>()->composing(),
                  "override a deck key: path.to.key=value (may be repeated)");
}

void refuse(const std::string& text) { throw Error(ExitCode::usage, text); }

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

std::string read_file(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    throw Error(ExitCode::usage, path + ": this is a folder, expected a deck (a YAML file)");
  }
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    throw Error(ExitCode::usage,
                path + ": this is a pipe or a device, expected a deck (a YAML file)");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    throw Error(ExitCode::usage,
                fmt::format("{}: cannot read this deck: {}", path, std::strerror(errno)));
  }
  return text;
}

/// The text of this host's file; absent if it has none that can be read.
std::optional<std::string> own_text(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// "line 2 has 'width: 32' on rank 0 and 'width: 64' on rank 1": the first entry that differs.
std::string first_difference(const std::string& first, const std::string& other, std::size_t rank) {
  const auto at = static_cast<std::size_t>(std::ranges::mismatch(first, other).in1 - first.begin());
  const auto before = first.substr(0, at);
  const auto begin = before.find_last_of("{,\n") + 1;  // 0 if there is none
  const auto entry = [begin](const std::string& text) {
    const auto word = std::min(text.find_first_not_of(' ', begin), text.size());
    return text.substr(word, std::min(text.find_first_of(",}\n", word), text.size()) - word);
  };
  return fmt::format("line {} has '{}' on rank 0 and '{}' on rank {}",
                     1 + std::ranges::count(before, '\n'), entry(first), entry(other), rank);
}

/// Hosts need not share a disk; a rank whose host has no such file takes the text of rank 0.
void require_one_deck(comm::World& world, const std::string& path, const std::string& text) {
  const std::string mine = world.rank() == 0 ? text : own_text(path).value_or(text);
  const std::string differs =
      differences(world.all_gather(fmt::format("{:016x}", name_hash(mine))));
  if (differs.empty()) return;
  const std::vector<std::string> all = world.all_gather(mine);
  const auto other = std::ranges::find_if(all, [&](const auto& each) { return each != all[0]; });
  throw Error(
      ExitCode::usage,
      fmt::format("{}: the ranks find different decks (hash {}): {}; bring one "
                  "deck to all hosts",
                  path, differs,
                  first_difference(all[0], *other, static_cast<std::size_t>(other - all.begin()))))
      .on_all_ranks();
}

}  // namespace

void require_places(comm::World& world, const Arguments& args,
                    std::initializer_list<const char*> options) {
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    for (const char* option : options) {
      if (args.has(option)) io::require_place_for_file(args.get<std::string>(option));
    }
  });
}

std::string read_deck_text(comm::World& world, const std::string& path) {
  std::string text;
  comm::agree(world, [&] {
    if (world.rank() == 0) text = read_file(path);
  });
  text = world.broadcast(text);
  require_one_deck(world, path, text);
  return text;
}

deck::Surroundings surroundings_of(const comm::World& world, const DeckSource& source) {
  deck::Surroundings surroundings;
  surroundings.ranks = source.any_ranks ? 0 : source.ranks > 0 ? source.ranks : world.size();
  surroundings.for_training = source.for_training;
  surroundings.has_cuda_device = source.device == "cuda" || cuda_device_count() > 0;
  surroundings.has_cuda_build = source.device == "cuda" || kHasCuda;
  surroundings.is_plan = source.is_plan;
  surroundings.unused = source.unused;
  return surroundings;
}

std::vector<std::string_view> keys_beside_the_step(bool reads_data) {
  std::vector<std::string_view> keys = {"run.name",      "schedule.",       "train.steps",
                                        "train.epochs",  "train.validate_", "train.tasks",
                                        "train.sample_", "checkpoint.",     "timing."};
  if (reads_data) return keys;
  // All but documents and how they are packed, which decide attention's work.
  for (const char* key : {"data.train", "data.validation", "data.weight", "data.sampling",
                          "data.dtype", "data.vocabulary", "data.ignore_token", "data.loss_mask",
                          "data.broken_images", "data.decode", "data.threads"}) {
    keys.emplace_back(key);
  }
  return keys;
}

const std::vector<std::string_view>& keys_of_training() {
  static const std::vector<std::string_view> keys = {"precision.gradients",
                                                     "precision.fp8_param_gather"};
  return keys;
}

train::Config read_config(comm::World& world, const DeckSource& source) {
  const std::string text = read_deck_text(world, source.path);
  std::vector<std::string> overrides = source.overrides;
  if (!source.device.empty()) overrides.push_back("run.device=" + source.device);
  try {
    std::string cuts;
    train::Config config =
        deck::read_deck(text, source.path, overrides, surroundings_of(world, source), &cuts);
    if (!cuts.empty()) log::info("to fit --set: " + cuts);
    return config;
  } catch (const Error& error) {
    throw error.on_all_ranks();
  }
}

std::function<bool(const train::Config&)> legal_changes(const train::Config& config) {
  deck::Surroundings here;
  here.has_cuda_device = cuda_device_count() > 0;
  return [config, here](const train::Config& changed) {
    return deck::keeps_rules(config, changed, here);
  };
}

void add_parse_special_option(Arguments& arguments) {
  arguments.add()("parse-special",
                  "special tokens that a text names, such as <s> or <|endoftext|>, are these "
                  "tokens, as in transformers (default: they are text)");
}

io::SpecialTokens special_tokens(const Arguments& arguments) {
  return arguments.has("parse-special") ? io::SpecialTokens::parsed : io::SpecialTokens::text;
}

}  // namespace hyperslab::cli
