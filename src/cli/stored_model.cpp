// SPDX-License-Identifier: Apache-2.0
#include "stored_model.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "hyperslab/core/log.hpp"
#include "stored.hpp"

namespace hyperslab::cli {

void add_stored_model_options(Arguments& args) {
  args.add()(
      "checkpoint", po::value<std::string>()->required(),
      "a step's folder, a directory of them, or a run directory; of several steps the newest "
      "is taken")("base", po::value<std::string>(),
                  "of a checkpoint of adapters: the model that they were trained on (default: "
                  "checkpoint.initial of its deck)")(
      "vocab", po::value<std::string>(),
      "vocabulary (default: the one that the checkpoint keeps, else that of its deck)");
}

void add_cache_option(Arguments& args) {
  args.add()("cache-tokens", po::value<std::int64_t>(),
             "tokens of all running texts whose keys and values are kept, at least a context; if "
             "they do not suffice, the newest text waits and is read again (default: a context for "
             "every text)");
}

Dim cache_tokens(const Arguments& args) {
  if (!args.has("cache-tokens")) return 0;
  const auto tokens = args.get<std::int64_t>("cache-tokens");
  if (tokens < 1) throw Error(ExitCode::usage, "--cache-tokens must be 1 or more");
  return tokens;
}

void log_cache(const generate::Generator& generator) {
  const model::CacheSize& cache = generator.cache();
  log::info(fmt::format("cache: {} pages of {} tokens, {:.1f} MiB; {} texts of up to {} tokens",
                        cache.pages, cache.page_tokens(),
                        static_cast<double>(generator.cache_bytes()) / 1048576.0, cache.rows,
                        cache.tokens));
}

StoredModel open_stored_model(const Arguments& args) {
  io::CheckpointReader reader(args.get<std::string>("checkpoint"));
  std::vector<std::string> notes;
  std::vector<std::string> overrides;
  if (args.has("base")) overrides = {"checkpoint.initial=" + args.get<std::string>("base")};
  train::Config config =
      read_stored_deck({reader.meta().deck, reader.folder()}, overrides, 0, notes);
  for (const std::string& note : notes) log::info(note);
  if (config.model.is_of_images()) {
    throw Error(ExitCode::usage,
                "the checkpoint is of a vision transformer, which generates nothing; see eval");
  }
  const std::string vocabulary =
      args.has("vocab") ? args.get<std::string>("vocab") : stored_vocabulary(reader, config);
  if (vocabulary.empty()) {
    throw Error(ExitCode::usage, "the checkpoint's deck names no data.vocabulary; give --vocab");
  }
  auto tokenizer = io::open_tokenizer(vocabulary);
  io::require_fits_model(*tokenizer, vocabulary, config.model.vocabulary);
  return {std::move(reader), std::move(config), std::move(tokenizer)};
}

}  // namespace hyperslab::cli
