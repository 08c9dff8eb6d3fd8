// SPDX-License-Identifier: Apache-2.0
#include "source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "../checkpoint/stored.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::int64_t kMostAxisRanks = 65536;  // the largest axis of a deck

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_deck(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

/// Options that take several values also take the deck that stands after them.
void move_to(std::vector<std::string>& decks, std::vector<std::string>& from,
             bool (*is_one)(const std::string&)) {
  const auto found = std::ranges::stable_partition(from, std::not_fn(is_one));
  decks.insert(decks.end(), found.begin(), found.end());
  from.erase(found.begin(), found.end());
}

/// The last value that --set gives a key.
std::optional<std::string_view> override_of(const EvalSource& source, std::string_view key) {
  std::optional<std::string_view> value;
  for (const std::string_view override : source.overrides) {
    if (override.starts_with(key) && override.substr(key.size()).starts_with('=')) {
      value = override.substr(key.size() + 1);
    }
  }
  return value;
}

bool overrides_key(const EvalSource& source, std::string_view key) {
  return override_of(source, key).has_value();
}

/// Ranks of an axis that --set asks for; the reader of decks judges wrong ones.
std::int64_t asked_ranks(const EvalSource& source, std::string_view key, std::int64_t otherwise) {
  const std::string_view text = override_of(source, key).value_or("");
  std::int64_t ranks = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), ranks);
  return ranks >= 1 && ranks <= kMostAxisRanks ? ranks : otherwise;
}

/// The deck and the vocabulary that rank 0 finds in a checkpoint.
StoredDeck stored_in(comm::World& world, const std::string& checkpoint) {
  StoredDeck stored;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    const io::CheckpointReader reader(checkpoint);
    stored = stored_deck(reader);
  });
  stored.text = world.broadcast(stored.text);
  stored.folder = world.broadcast(stored.folder);
  stored.started_in = world.broadcast(stored.started_in);
  return stored;
}

/// The vocabulary that a checkpoint keeps, which rank 0 finds sound; empty: none.
std::string kept_vocabulary(comm::World& world, const std::string& checkpoint) {
  std::string kept;
  comm::agree(world, [&] {
    if (world.rank() == 0) kept = io::CheckpointReader(checkpoint).vocabulary_path();
  });
  return world.broadcast(kept);
}

struct Axes {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  friend bool operator==(const Axes&, const Axes&) = default;
  [[nodiscard]] std::int64_t ranks() const { return data * tensor * pipeline; }
};

/// Those that --set asks for; the others are the deck's if that takes all ranks and cuts the model
/// in the same way, else one tensor and pipeline rank and as many data ranks as are left.
Axes axes_of(const Axes& deck, const EvalSource& source, std::int64_t ranks) {
  const auto asked = [&](const Axes& otherwise) {
    return Axes{asked_ranks(source, "parallel.data", otherwise.data),
                asked_ranks(source, "parallel.tensor", otherwise.tensor),
                asked_ranks(source, "parallel.pipeline", otherwise.pipeline)};
  };
  const Axes as_in_deck = asked(deck);
  if (as_in_deck.ranks() == ranks && as_in_deck.pipeline == deck.pipeline) return as_in_deck;
  const std::int64_t share = asked({}).tensor * asked({}).pipeline;
  if (ranks % share != 0) {
    throw Error(ExitCode::usage, fmt::format("parallel.tensor={} and parallel.pipeline={} need a "
                                             "multiple of {} ranks, and {} were started",
                                             asked({}).tensor, asked({}).pipeline, share, ranks))
        .on_all_ranks();
  }
  return asked({.data = ranks / share});
}

/// Overrides that lay a checkpoint's deck out over so many ranks.
std::vector<std::string> layout_overrides(const train::Config& config, const EvalSource& source,
                                          std::int64_t ranks) {
  // Evaluations have all tokens of a sample on one rank.
  const Axes deck = {config.parallel.data, config.parallel.tensor, config.parallel.pipeline};
  const std::int64_t context = asked_ranks(source, "parallel.context", 1);
  const Axes axes = axes_of(deck, source, ranks % context == 0 ? ranks / context : ranks);
  std::vector<std::string> overrides;
  if (axes != deck || config.parallel.context > 1) {
    overrides = plain_layout(axes.data, axes.tensor, axes.pipeline);
  }
  if (axes.data == config.parallel.data) return overrides;
  const std::int64_t share = std::max<std::int64_t>(1, config.train.global_batch / axes.data);
  overrides.push_back(fmt::format("train.microbatch={}", std::min(config.train.microbatch, share)));
  if (config.train.global_batch < axes.data) {
    overrides.push_back(fmt::format("train.global_batch={}", axes.data));
  }
  return overrides;
}

/// Paths of the checkpoint's deck as seen from here, of the text that is to be measured.
void find_text(train::Config& config, const EvalSource& source, const StoredDeck& deck) {
  if (!source.needs_text) return;
  constexpr const char* kRemedy = "give --data FILE, or start the command there";
  const bool splits = config.data.validation_fraction > 0;
  const char* key = splits ? "data.train" : "data.validation";
  if (overrides_key(source, key)) return;
  find_paths(key, splits ? config.data.train : config.data.validation, deck, config, kRemedy);
}

/// A kept vocabulary is looked at only if it is used, so that a damaged one is no hindrance.
void choose_vocabulary(comm::World& world, train::Config& config, const EvalSource& source,
                       const StoredDeck& stored) {
  std::string& path = config.data.vocabulary;
  if (path.empty() || path == "bytes" || overrides_key(source, "data.vocabulary")) return;
  std::error_code ignored;
  const bool there = world.all(std::filesystem::exists(path, ignored));
  if (!source.deck.empty() && there) return;
  const std::string kept = kept_vocabulary(world, source.checkpoints.front());
  if (!kept.empty()) path = kept;
  if (source.deck.empty()) path = found_path(path, stored, config);
}

/// Refuses to measure the training text in place of a validation text.
void require_tokens(const train::Config& config) {
  if (!config.data.validation.empty() || config.data.validation_fraction > 0) return;
  throw Error(ExitCode::usage, "the deck names no validation files; give --data FILE")
      .on_all_ranks();
}

eval::EvalDeck deck_of_checkpoint(comm::World& world, const EvalSource& source,
                                  const StoredDeck& deck) {
  std::vector<std::string> notes;
  const train::Config trained = read_stored_deck(deck, {}, 0, notes);
  notes.clear();
  std::vector<std::string> overrides = layout_overrides(trained, source, world.size());
  overrides.insert(overrides.end(), source.overrides.begin(), source.overrides.end());
  eval::EvalDeck out;
  out.config = read_stored_deck(deck, overrides, world.size(), notes, source.needs_text);
  out.validation_batch = overrides_key(source, "train.global_batch") ? out.config.train.global_batch
                                                                     : trained.train.global_batch;
  if (world.rank() == 0) {
    for (const std::string& note : notes) log::info(note);
  }
  return out;
}

/// True if one deck can measure both: they have the same adapters and quantization.
bool are_stored_alike(const train::Config& one, const train::Config& other) {
  return one.adapter == other.adapter && one.quantization == other.quantization &&
         one.model.frozen_format == other.model.frozen_format;
}

/// The checkpoints of a source by groups, without decks. Collective.
std::vector<EvalGroup> split(comm::World& world, const EvalSource& source) {
  std::vector<EvalGroup> groups;
  std::optional<train::Config> last;
  for (const std::string& checkpoint : source.checkpoints) {
    std::optional<train::Config> stored;
    if (source.deck.empty()) stored = as_stored(stored_in(world, checkpoint));
    if (groups.empty() || (stored && !are_stored_alike(*last, *stored))) {
      groups.push_back({source, {}});
      groups.back().source.checkpoints.clear();
      groups.back().source.needs_text = source.needs_text && groups.size() == 1;
    }
    groups.back().source.checkpoints.push_back(checkpoint);
    last = stored;
  }
  return groups;
}

/// Measures a later group on the first one's data.
void take_data(const EvalGroup& first, EvalGroup& group) {
  const train::Config& model = first.deck.config;
  train::Config& config = group.deck.config;
  if (config.model.is_of_images() != model.model.is_of_images() ||
      config.model.context != model.model.context ||
      config.model.vocabulary != model.model.vocabulary) {
    throw Error(ExitCode::usage,
                fmt::format("{} and {} have other samples (model.context {} and {}, "
                            "model.vocabulary {} and {}); evaluate them one at a time",
                            first.source.checkpoints.front(), group.source.checkpoints.front(),
                            model.model.context, config.model.context, model.model.vocabulary,
                            config.model.vocabulary))
        .on_all_ranks();
  }
  config.data = model.data;
  config.augment = model.augment;
  config.run.seed = model.run.seed;
  config.train.validate_batches = model.train.validate_batches;
  group.deck.validation_batch = first.deck.validation_batch;
}

}  // namespace

EvalSource eval_source(const Arguments& args) {
  EvalSource source;
  source.checkpoints = args.list("checkpoint");
  source.overrides = args.list("set");
  source.averages = args.has("ema");
  source.needs_text = !args.has("tasks");
  std::vector<std::string> files = args.list("data");
  std::vector<std::string> decks = args.list("DECK");
  move_to(decks, source.checkpoints, is_file);
  move_to(decks, files, is_deck);
  if (decks.size() > 1 || source.checkpoints.empty()) {
    throw Error(ExitCode::usage,
                fmt::format("eval takes checkpoints, which are folders, and at most "
                            "one deck, found the files '{}'",
                            fmt::join(decks, "', '")))
        .on_all_ranks();
  }
  if (!decks.empty()) source.deck = decks.front();
  if (args.has("data")) {
    // First, so that --set still wins.
    const std::string list = nlohmann::json(files).dump();
    source.overrides.insert(source.overrides.begin(),
                            {"data.validation=" + list, "data.validation_fraction=0"});
  }
  return source;
}

std::vector<EvalGroup> eval_groups(comm::World& world, const EvalSource& source) {
  std::vector<EvalGroup> groups;
  try {
    groups = split(world, source);
  } catch (const Error& error) {
    throw error.on_all_ranks();
  }
  for (EvalGroup& group : groups) {
    group.deck = eval_deck(world, group.source);
    if (&group != &groups.front()) take_data(groups.front(), group);
  }
  return groups;
}

eval::EvalDeck eval_deck(comm::World& world, const EvalSource& source) {
  eval::EvalDeck out;
  if (!source.deck.empty()) {
    out.config = read_config(
        world, {.path = source.deck, .overrides = source.overrides, .unused = keys_of_training()});
    out.validation_batch = out.config.train.global_batch;
  }
  const StoredDeck stored = stored_in(world, source.checkpoints.front());
  if (source.deck.empty()) {
    try {
      out = deck_of_checkpoint(world, source, stored);
    } catch (const Error& error) {
      throw error.on_all_ranks();
    }
    comm::agree(world, [&] { find_text(out.config, source, stored); });
  }
  out.is_legal = legal_changes(out.config);
  out.averages = source.averages;
  if (source.needs_text) require_tokens(out.config);
  choose_vocabulary(world, out.config, source, stored);
  return out;
}

}  // namespace hyperslab::cli
