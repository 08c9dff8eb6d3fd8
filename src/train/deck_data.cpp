// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/deck_data.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "hyperslab/io/image_samples.hpp"
#include "hyperslab/io/images.hpp"
#include "hyperslab/io/mixture.hpp"
#include "hyperslab/io/packing.hpp"
#include "hyperslab/io/vocabulary_record.hpp"

namespace hyperslab::train {
namespace {

/// The deck's weights from the samples on at which they begin.
std::vector<io::MixtureStage> mixture_stages(const Config& config) {
  const io::DataConfig& data = config.data;
  const auto sources = static_cast<std::ptrdiff_t>(data.train.size());
  std::vector<io::MixtureStage> stages;
  for (auto row = data.weights.begin(); row != data.weights.end(); row += sources) {
    const std::size_t number = stages.size();
    const std::int64_t step = number == 0 ? 1 : data.weight_steps[number - 1];
    stages.push_back({(step - 1) * config.train.global_batch, {row, row + sources}});
  }
  return stages;
}

std::unique_ptr<io::Samples> token_samples(const Config& config, const io::TokenSource& tokens,
                                           Dim T, bool shuffle) {
  const auto sampling = shuffle ? config.data.sampling : io::Sampling::blocks;
  return std::make_unique<io::TokenSamples>(tokens, sampling, T, config.run.seed, shuffle,
                                            config.data.target_rules());
}

io::PackedSamples::PackedAs packed_as(const Config& config) {
  using enum io::PackedSamples::PackedAs;
  return config.train.loss == Loss::preference ? pairs : documents;
}

std::unique_ptr<io::Samples> training_samples(const Config& config, const io::TokenSource& tokens,
                                              Dim T) {
  const io::DataConfig& data = config.data;
  if (!data.weights.empty()) {
    return std::make_unique<io::MixedSamples>(tokens, mixture_stages(config), data.sampling, T,
                                              config.run.seed, data.target_rules(),
                                              io::MixedPacking{data.packing, packed_as(config)});
  }
  if (data.packing == io::Packing::contiguous) return token_samples(config, tokens, T, true);
  return std::make_unique<io::PackedSamples>(tokens, tokens.documents(data.end_token), data.packing,
                                             T, config.run.seed, data.target_rules(),
                                             packed_as(config));
}

DeckData open_text(const Config& config, io::DataPart part, std::int64_t ids) {
  const Dim T = config.model.context;
  io::DataTokens tokens = io::open_data(config.data, config.model.vocabulary, config.run.seed, part,
                                        ids, config.token_columns(part == io::DataPart::both));
  DeckData data;
  if (tokens.train && part == io::DataPart::both) {
    data.train_samples = training_samples(config, *tokens.train, T);
  }
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
  options.global_batch = config.train.global_batch;
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

DeckData open_data(const Config& config, io::DataPart part, std::int64_t ids) {
  return config.model.is_of_images() ? open_images(config, part) : open_text(config, part, ids);
}

void require_same_vocabulary(const DeckData& data, const io::Tokenizer& tokenizer,
                             const Config& config) {
  for (const auto* source : {data.train.get(), data.validation.get()}) {
    const auto* tokens = dynamic_cast<const io::TokenSource*>(source);
    if (tokens != nullptr) {
      io::require_same_vocabulary(*tokens, tokenizer, config.data.vocabulary);
    }
  }
}

std::string left_out_files(const io::DataSource& source, Dim T) {
  const auto* tokens = dynamic_cast<const io::TokenSource*>(&source);
  if (tokens == nullptr) return "";
  const std::vector<std::int64_t> begins = tokens->segments();
  std::int64_t files = 0;
  std::int64_t left_out = 0;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const std::int64_t end = i + 1 < begins.size() ? begins[i + 1] : tokens->size();
    if (end - begins[i] > T) continue;
    ++files;
    left_out += end - begins[i];
  }
  if (files == 0) return "";
  return fmt::format(
      "{} of {} files hold fewer than {} tokens, a sample and its last target: their {} tokens are "
      "left out; data.join_files: true joins files",
      files, begins.size(), T + 1, left_out);
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
  data.train_samples = std::make_unique<io::TokenSamples>(
      *tokens, io::Sampling::blocks, T, config.run.seed, true, config.data.target_rules());
  data.train = std::move(tokens);
  return data;
}

std::string sample_order(const Config& config, std::int64_t step, const io::DataSource& train) {
  if (config.model.is_of_images()) {
    const std::int64_t repeats = config.augment.repeats;
    return fmt::format("seed={} images", config.run.seed) +
           (repeats > 1 ? fmt::format(" repeats={}", repeats) : "");
  }
  const io::DataConfig& data = config.data;
  std::string order = fmt::format("seed={} sampling={} context={}", config.run.seed,
                                  io::name_of(data.sampling), config.model.context);
  if (data.packing != io::Packing::contiguous) {
    order += fmt::format(" packing={} end_token={}", io::name_of(data.packing), data.end_token);
    if (config.train.loss == Loss::preference) order += " pairs=true";
  }
  // One file has one order, also as an entry of a mixture. Joined files have one file's order.
  const auto* tokens = dynamic_cast<const io::TokenSource*>(&train);
  const std::size_t entries =
      tokens == nullptr || data.weights.empty() ? 1 : tokens->parts().size();
  if (tokens != nullptr && tokens->segments().size() > entries) order += " join_files=false";
  if (data.weights.empty()) return order;
  // Weights that come later may be added or changed.
  const auto stages = std::ranges::upper_bound(data.weight_steps, step) - data.weight_steps.begin();
  const std::span steps(data.weight_steps.data(), static_cast<std::size_t>(stages));
  const std::span weights(data.weights.data(), data.train.size() * (steps.size() + 1));
  order += fmt::format(" weights=[{}]", fmt::join(weights, ", "));
  if (steps.empty()) return order;
  return order + fmt::format(" weight_steps=[{}]", fmt::join(steps, ", "));
}

std::string differing_order_keys(const std::string& one, const std::string& other) {
  constexpr std::array kKeys = {std::pair{"seed", "run.seed"},
                                std::pair{"sampling", "data.sampling"},
                                std::pair{"context", "model.context"},
                                std::pair{"packing", "data.packing"},
                                std::pair{"end_token", "data.end_token"},
                                std::pair{"pairs", "train.loss"},
                                std::pair{"join_files", "data.join_files"},
                                std::pair{"weights", "data.weights"},
                                std::pair{"weight_steps", "data.weight_steps"},
                                std::pair{"repeats", "augment.repeats"}};
  std::vector<std::string> keys;
  for (const auto& [word, key] : kKeys) {
    const auto value_in = [name = fmt::format(" {}=", word)](const std::string& order) {
      const std::string words = " " + order;
      const std::size_t at = words.find(name);
      if (at == words.npos) return std::string();
      const std::size_t begin = at + name.size();
      return words.substr(begin, words.find(words[begin] == '[' ? ']' : ' ', begin) - begin);
    };
    if (value_in(one) != value_in(other)) keys.emplace_back(key);
  }
  return fmt::format("{}", fmt::join(keys, " and "));
}

}  // namespace hyperslab::train
