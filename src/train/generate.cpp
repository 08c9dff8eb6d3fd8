// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// Uniform on [0, 1) of draw `index`, a function of the seed.
double draw(std::uint64_t seed, std::int64_t index) {
  const PhiloxCounter words =
      philox(philox_counter(static_cast<std::uint64_t>(index), name_hash("sampling")), seed);
  return (static_cast<double>(words.x[0]) + static_cast<double>(words.x[1]) * 0x1p-32) * 0x1p-32;
}

/// A model that continues text, token by token.
class Generator {
 public:
  Generator(const Config& config, const io::CheckpointReader& reader);
  /// Appends tokens and leaves the logits of the next one.
  void feed(std::span<const std::int32_t> tokens);
  [[nodiscard]] std::span<const float> logits() const { return host_.view().span<float>(); }
  [[nodiscard]] Dim past() const { return past_; }
  void forget() { past_ = 0; }
  [[nodiscard]] Dim context() const { return trainer_.sequence(); }

 private:
  static TrainerOptions options(const Config& config);
  TrainerOptions options_;
  mesh::Mesh mesh_;
  model::MemoryPlan plan_;
  Trainer trainer_;
  Tensor tokens_;   // (1, T) on the device
  Tensor logits_;   // (1, V) on the device, in the compute dtype
  Tensor widened_;  // the same in f32
  Tensor host_;
  Dim past_ = 0;
};

TrainerOptions Generator::options(const Config& config) {
  TrainerOptions options = trainer_options(config, 0, false);
  options.cache = true;
  options.B = 1;
  return options;
}

Generator::Generator(const Config& config, const io::CheckpointReader& reader)
    : options_(options(config)),
      mesh_(mesh::Mesh::plan(config.parallel, 0)),
      plan_(make_plan(config, options_, 0).memory),
      trainer_(config, mesh_, options_, &plan_),
      tokens_(options_.device, DType::i32, {1, trainer_.sequence()}),
      logits_(options_.device, options_.compute, {1, config.model.vocabulary}),
      widened_(options_.device, DType::f32, {1, config.model.vocabulary}),
      host_(Device::cpu, DType::f32, {1, config.model.vocabulary}) {
  trainer_.initialize();
  trainer_.load(reader);
}

void Generator::feed(std::span<const std::int32_t> tokens) {
  Context& ctx = trainer_.context();
  const auto count = static_cast<Dim>(tokens.size());
  const View place(tokens_.view().raw(), DType::i32, options_.device, {1, count});
  copy(ctx, CView(tokens.data(), DType::i32, Device::cpu, {1, count}), place);
  trainer_.stage().decode(ctx, place, past_, logits_.view());
  ops::cast(ctx, logits_.view(), widened_.view());
  copy(ctx, widened_.view(), host_.view());
  synchronize(ctx);
  past_ += count;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::int64_t index, std::vector<std::int32_t>& scratch) {
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  scratch.resize(logits.size());
  std::iota(scratch.begin(), scratch.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::ranges::sort(scratch, likelier);
  auto kept = scratch.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  const double top = logits[static_cast<std::size_t>(scratch.front())];
  const auto weight = [&](std::size_t place) {
    const double logit = logits[static_cast<std::size_t>(scratch[place])];
    return std::exp((logit - top) / options.temperature);
  };
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weight(i);
  if (options.top_p < 1) {  // the smallest set of likeliest tokens that holds top_p
    double mass = 0;
    std::size_t nucleus = 0;
    while (nucleus < kept && mass < options.top_p * total) mass += weight(nucleus++);
    kept = std::max<std::size_t>(nucleus, 1);
    total = mass;
  }
  double rest = draw(options.seed, index) * total;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    rest -= weight(i);
    if (rest < 0) return scratch[i];
  }
  return scratch[kept - 1];
}

GenerateStats generate(const Config& config, const io::CheckpointReader& reader,
                       const std::vector<std::int32_t>& prompt, const SamplingOptions& options,
                       const std::function<void(std::int32_t)>& emit) {
  Generator generator(config, reader);
  const auto context = static_cast<std::size_t>(generator.context());
  std::vector<std::int32_t> tokens = prompt;
  const auto newest = [&](std::size_t count) {
    return std::span(tokens).last(std::min(count, tokens.size()));
  };
  GenerateStats stats;
  stats.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  double mark = now_seconds();
  generator.feed(newest(context));
  stats.prompt_seconds = now_seconds() - mark;
  mark = now_seconds();
  std::vector<std::int32_t> scratch;
  while (stats.tokens < options.max_tokens) {
    const std::int32_t token = sample_token(generator.logits(), options, stats.tokens, scratch);
    if (token == options.stop_token) break;
    tokens.push_back(token);
    ++stats.tokens;
    emit(token);
    if (stats.tokens == options.max_tokens) break;
    if (generator.past() == generator.context()) {
      generator.forget();
      generator.feed(newest(std::max<std::size_t>(context / 2, 1)));
    } else {
      generator.feed(newest(1));
    }
  }
  stats.seconds = now_seconds() - mark;
  return stats;
}

}  // namespace hyperslab::train
