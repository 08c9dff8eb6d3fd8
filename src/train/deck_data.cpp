// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/deck_data.hpp"

#include <fmt/format.h>

#include <utility>

namespace hyperslab::train {
namespace {

std::unique_ptr<io::Samples> token_samples(const Config& config, const io::TokenSource& tokens,
                                           Dim T, bool shuffle) {
  const auto sampling = shuffle ? config.data.sampling : io::Sampling::blocks;
  return std::make_unique<io::TokenSamples>(tokens, sampling, T, config.run.seed, shuffle,
                                            config.data.ignore_token);
}

DeckData open_text(const Config& config, io::DataPart part) {
  const Dim T = config.model.context;
  io::DataTokens tokens =
      io::open_data(config.data, config.model.vocabulary, config.run.seed, part);
  DeckData data;
  if (tokens.train) data.train_samples = token_samples(config, *tokens.train, T, true);
  if (tokens.validation)
    data.validation_samples = token_samples(config, *tokens.validation, T, false);
  data.train = std::move(tokens.train);
  data.validation = std::move(tokens.validation);
  return data;
}

}  // namespace

DeckData open_data(const Config& config, io::DataPart part) { return open_text(config, part); }

DeckData generated_data(const Config& config, Dim T) {
  DeckData data;
  auto tokens =
      io::open_tokens({"synthetic"}, config.data.dtype, config.model.vocabulary, config.run.seed);
  data.train_samples =
      std::make_unique<io::TokenSamples>(*tokens, io::Sampling::blocks, T, config.run.seed);
  data.train = std::move(tokens);
  return data;
}

std::string sample_order(const Config& config) {
  return fmt::format("seed={} sampling={} context={}", config.run.seed,
                     io::name_of(config.data.sampling), config.model.context);
}

}  // namespace hyperslab::train
