// SPDX-License-Identifier: Apache-2.0
#include "stored_model.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/stored.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"

namespace hyperslab::cli {

void add_stored_model_options(Arguments& args, ModelSource source) {
  const bool can_follow = source == ModelSource::checkpoint_or_run;
  auto checkpoint = po::value<std::string>();
  if (!can_follow) checkpoint.required();
  args.add()(
      "checkpoint", checkpoint,
      "a step's folder, a directory of them, or a run directory; of several steps the newest "
      "is taken");
  if (can_follow) {
    args.add()("follow", po::value<std::string>(),
               "in place of --checkpoint: a run directory, or a directory of checkpoints; as the "
               "run goes on, answers that begin after a new checkpoint come from it, and those in "
               "progress are finished with the one before it");
  }
  args.add()("base", po::value<std::string>(),
             "of a checkpoint of adapters: the model that they were trained on (default: "
             "checkpoint.initial of its deck)")(
      "ema", "take the exponential moving average of the weights (optimizer.ema_decay)")(
      "vocab", po::value<std::string>(),
      "vocabulary (default: the one that the checkpoint keeps, else that of its deck)");
}

void add_cache_options(Arguments& args) {
  args.add()("cache-tokens", po::value<std::int64_t>(),
             "tokens of all running texts whose keys and values are kept, at least a context; if "
             "they do not suffice, the newest text waits and is read again (default: a context for "
             "every text)")(
      "keep-cache",
      "keep keys and values where run.deterministic has a GPU read whole texts again for every "
      "token: faster by far, and logits differ from those of a forward pass by rounding");
}

std::optional<model::Generation> generation_of(const Arguments& args) {
  if (!args.has("keep-cache")) return {};
  return model::Generation::cached;
}

Dim cache_tokens(const Arguments& args) {
  if (!args.has("cache-tokens")) return 0;
  const auto tokens = args.get<std::int64_t>("cache-tokens");
  if (tokens < 1) throw Error(ExitCode::usage, "--cache-tokens must be 1 or more");
  return tokens;
}

void log_cache(const generate::Generator& generator) {
  const model::CacheSize& cache = generator.cache();
  if (generator.cache_bytes() == 0) {
    log::info(fmt::format(
        "cache: none, as run.deterministic reads whole texts on a GPU (--keep-cache keeps one); {} "
        "texts of up to {} tokens",
        cache.rows, cache.tokens));
    return;
  }
  log::info(fmt::format("cache: {} pages of {} tokens, {:.1f} MiB; {} texts of up to {} tokens",
                        cache.pages, cache.page_tokens(),
                        static_cast<double>(generator.cache_bytes()) / 1048576.0, cache.rows,
                        cache.tokens));
}

void add_draft_options(Arguments& args) {
  args.add()("draft", po::value<std::int64_t>(),
             "guess up to so many tokens of a text and read them in one pass with the newest one; "
             "those that the model would say, too, are kept, so that texts are as likely as "
             "without. Guesses are what followed the last tokens where they stood before in the "
             "text (default: none)")(
      "draft-checkpoint", po::value<std::string>(),
      "with --draft: a smaller model of the same vocabulary guesses");
}

Dim draft_tokens(const Arguments& args) {
  if (!args.has("draft")) {
    if (!args.has("draft-checkpoint")) return 0;
    throw Error(ExitCode::usage,
                "--draft-checkpoint guesses as many tokens as --draft says; give --draft N too");
  }
  const auto tokens = args.get<std::int64_t>("draft");
  if (tokens < 1 || tokens > generate::kMostDraftTokens) {
    throw Error(ExitCode::usage, fmt::format("--draft must be 1 to {}, found {}",
                                             generate::kMostDraftTokens, tokens));
  }
  return tokens;
}

void log_drafts(const Arguments& args, const generate::Generator& generator) {
  if (generator.draft_tokens() == 0) return;
  constexpr double kMib = 1048576.0;
  const std::string most = fmt::format("drafts: up to {} tokens a pass", generator.draft_tokens());
  if (!args.has("draft-checkpoint")) {
    return log::info(most + ", looked up in each text");
  }
  log::info(fmt::format("{}, by {}: {:.1f} MiB, of them {:.1f} MiB of cache", most,
                        printable(args.get<std::string>("draft-checkpoint")),
                        static_cast<double>(generator.draft_footprint().rank_peak) / kMib,
                        static_cast<double>(generator.draft_cache_bytes()) / kMib));
}

std::string describe(const generate::GenerateStats& stats) {
  constexpr double kPercent = 100;
  const auto [drafted, accepted] = stats.drafts;
  std::string text =
      fmt::format("{} passes; drafts: {} tokens, {} accepted", stats.passes, drafted, accepted);
  if (drafted == 0) return text;
  return text + fmt::format(" ({:.1f} %)", kPercent * static_cast<double>(accepted) /
                                               static_cast<double>(drafted));
}

namespace {

/// The checkpoint to open, as options name it.
struct Choice {
  std::string folder;
  std::string base;  ///< empty: that of its deck
  bool ema = false;
};

StoredModel open(const Choice& choice, int ranks, bool logs, const Arguments& args,
                 io::SpecialTokens special) {
  io::CheckpointReader reader(choice.folder);
  if (choice.ema) reader.use_averages();
  std::vector<std::string> notes;
  std::vector<std::string> overrides;
  if (ranks > 1) overrides = plain_layout(1, ranks, 1);
  if (!choice.base.empty()) overrides.push_back("checkpoint.initial=" + choice.base);
  train::Config config =
      read_stored_deck(stored_deck(reader), overrides, ranks == 1 ? 0 : ranks, notes);
  for (const std::string& note : notes) {
    if (logs) log::info(note);
  }
  if (config.model.is_of_images()) {
    throw Error(ExitCode::usage,
                "the checkpoint is of a vision transformer, which generates nothing; see eval");
  }
  const std::string vocabulary =
      args.has("vocab") ? args.get<std::string>("vocab") : stored_vocabulary(reader, config);
  if (vocabulary.empty()) {
    throw Error(ExitCode::usage, "the checkpoint's deck names no data.vocabulary; give --vocab");
  }
  auto tokenizer = io::open_tokenizer(vocabulary, special);
  io::require_fits_model(*tokenizer, vocabulary, config.model.vocabulary);
  io::TextEnds ends = tokenizer->text_ends().with(config.model.eos_tokens);
  return {std::move(reader), std::move(config), vocabulary, std::move(tokenizer), std::move(ends)};
}

/// The step of `choice.folder` is the first rank's choice, as a run may save beside.
StoredModel open_on_all(comm::World& world, Choice choice, const Arguments& args,
                        io::SpecialTokens special) {
  std::string folder;
  comm::agree(world, [&] {
    if (world.rank() == 0) folder = io::CheckpointReader(choice.folder).folder();
  });
  choice.folder = world.broadcast(folder);
  std::optional<StoredModel> model;
  comm::agree(world,
              [&] { model.emplace(open(choice, world.size(), world.rank() == 0, args, special)); });
  // agree() throws on every rank if one has none.
  return std::move(*model);  // NOLINT(bugprone-unchecked-optional-access)
}

/// The first difference of two vocabularies; empty: there is none.
std::string difference(const StoredModel& draft, const StoredModel& model) {
  const std::int64_t ids = model.config.model.vocabulary;
  if (draft.config.model.vocabulary != ids) {
    return fmt::format("it has {} ids, and the model has {}", draft.config.model.vocabulary, ids);
  }
  for (std::int64_t i = 0; i < ids; ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string drafts = draft.tokenizer->decode(id);
    const std::string models = model.tokenizer->decode(id);
    if (drafts == models) continue;
    return fmt::format("id {} is '{}' there and '{}' in the model's", i, printable(drafts),
                       printable(models));
  }
  return {};
}

std::string checkpoint_path(const Arguments& args) {
  if (args.has("follow") && args.has("checkpoint")) {
    refuse("--follow does not go with --checkpoint; leave one of them out");
  }
  if (args.has("follow")) return args.get<std::string>("follow");
  if (!args.has("checkpoint")) refuse("--checkpoint or --follow is missing");
  return args.get<std::string>("checkpoint");
}

}  // namespace

StoredModel open_stored_model(comm::World& world, const Arguments& args,
                              io::SpecialTokens special) {
  const auto text = [&](const char* name) {
    return args.has(name) ? args.get<std::string>(name) : std::string();
  };
  return open_on_all(world, {checkpoint_path(args), text("base"), args.has("ema")}, args, special);
}

std::optional<StoredModel> open_draft_model(comm::World& world, const Arguments& args,
                                            const StoredModel& model) {
  if (!args.has("draft-checkpoint")) return {};
  const auto folder = args.get<std::string>("draft-checkpoint");
  std::optional<StoredModel> draft =
      open_on_all(world, {folder, {}, false}, args, io::SpecialTokens::text);
  comm::agree(world, [&] {
    const std::string differs = difference(*draft, model);
    if (differs.empty()) return;
    throw Error(ExitCode::usage,
                fmt::format("--draft-checkpoint '{}' has another vocabulary: {}; a draft needs the "
                            "model's own",
                            printable(folder), differs));
  });
  return draft;
}

generate::DraftSource draft_source(const std::optional<StoredModel>& model) {
  if (!model) return {};
  return {&model->config, &model->reader};
}

comm::WatchdogOptions watch_options(const comm::World& world, const train::Config& config) {
  return {world.size() > 1 ? config.run.hang_timeout_seconds : 0,
          mesh::describe(mesh::Position(config.parallel, world.rank()))};
}

}  // namespace hyperslab::cli
