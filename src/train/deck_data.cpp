// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/deck_data.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <utility>

#include "hyperslab/io/image_samples.hpp"
#include "hyperslab/io/images.hpp"

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

std::unique_ptr<io::Samples> image_samples(const Config& config, const io::ImageSet& images,
                                           bool training) {
  const model::ImageSpec& spec = config.model.image;
  io::ImageSampleOptions options;
  options.augment = config.augment;
  options.size = spec.size;
  options.patch = spec.patch;
  options.channels = spec.channels;
  options.seed = config.run.seed;
  options.training = training;
  options.broken = config.data.broken_images;
  options.decode = config.data.decode;
  options.threads =
      config.data.threads > 0 ? static_cast<int>(config.data.threads) : omp_get_max_threads();
  return std::make_unique<io::ImageSamples>(images, options);
}

DeckData open_images(const Config& config, io::DataPart part) {
  const model::ImageSpec& spec = config.model.image;
  const auto open = [&](const std::vector<std::string>& paths, std::uint64_t seed) {
    return io::open_images(paths, {spec.classes, spec.size, seed});
  };
  std::unique_ptr<io::ImageSet> train;
  std::unique_ptr<io::ImageSet> validation;
  if (part == io::DataPart::both) train = open(config.data.train, config.run.seed);
  if (!config.data.validation.empty()) {
    validation = open(config.data.validation, config.run.seed + 1);
  }
  if (train && validation) io::require_same_classes(*train, *validation);
  DeckData data;
  if (train) data.train_samples = image_samples(config, *train, true);
  if (validation) data.validation_samples = image_samples(config, *validation, false);
  data.train = std::move(train);
  data.validation = std::move(validation);
  return data;
}

}  // namespace

DeckData open_data(const Config& config, io::DataPart part) {
  return config.model.is_of_images() ? open_images(config, part) : open_text(config, part);
}

DeckData generated_data(const Config& config, Dim T) {
  if (config.model.is_of_images()) {
    Config generated = config;
    generated.data.train = {"synthetic"};
    generated.data.validation.clear();
    return open_images(generated, io::DataPart::both);
  }
  DeckData data;
  auto tokens =
      io::open_tokens({"synthetic"}, config.data.dtype, config.model.vocabulary, config.run.seed);
  data.train_samples =
      std::make_unique<io::TokenSamples>(*tokens, io::Sampling::blocks, T, config.run.seed);
  data.train = std::move(tokens);
  return data;
}

std::string sample_order(const Config& config) {
  if (config.model.is_of_images()) return fmt::format("seed={} images", config.run.seed);
  return fmt::format("seed={} sampling={} context={}", config.run.seed,
                     io::name_of(config.data.sampling), config.model.context);
}

}  // namespace hyperslab::train
