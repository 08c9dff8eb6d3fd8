// SPDX-License-Identifier: Apache-2.0
// Generation on a GPU: keys and values in the cache give the logits of recomputation.
#include <gtest/gtest.h>

#include <numeric>

#include "generate/same_bits.hpp"
#include "gpu/model_run.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"

namespace hyperslab {
namespace {

using test::operator+;

constexpr Dim kVocabulary = 503;
constexpr Dim kContext = 40;

constexpr const char* kDeck = R"(
run: {name: cache, seed: 5, device: cuda}
model: {family: gpt2, layers: 3, width: 64, heads: 4, vocabulary: 503, context: 40}
data: {train: [synthetic]}
train: {steps: 1, global_batch: 1, microbatch: 1}
)";

/// A model with a cache for one text.
class CachedModel {
 public:
  explicit CachedModel(const train::Config& config)
      : options_(cached(config)),
        mesh_(mesh::Mesh::plan(config.parallel, 0)),
        plan_(plan::make_plan(config, options_, 0).memory),
        trainer_(train::Trainer::make(config, mesh_, options_, plan_)),
        logits_(Device::cuda, options_.compute, {1, trainer_->stage().results().logits_columns}) {
    trainer_->state().initialize();
    synchronize(trainer_->context());
    trainer_->context().set_fixed_parameters(true);  // as in generation
  }
  /// Logits of the last of `tokens`, which follow `past` others that are in the cache.
  Tensor decode(std::vector<std::int32_t> tokens, Dim past) {
    Context& ctx = trainer_->context();
    const Shape shape = {1, static_cast<Dim>(tokens.size())};
    Tensor device_tokens(Device::cuda, DType::i32, shape);
    copy(ctx, CView(tokens.data(), DType::i32, Device::cpu, shape), device_tokens.view());
    trainer_->stage().decode(ctx, device_tokens.view(), past, logits_.view());
    return fetched();
  }
  /// GEMMs of kinds that `other` has run run as there: timed again, another could win.
  void multiply_like(CachedModel& other) {
    ops::adopt_algorithms(trainer_->context(), ops::algorithms_of(other.trainer_->context()));
  }
  /// The same of one token by a graph, which is captured at the second call.
  Tensor replay(std::int32_t token, Dim past) {
    Context& ctx = trainer_->context();
    const Tensor words = test::int_tensor({2}, {static_cast<std::int32_t>(past), token});
    copy(ctx, words.view(), one_.view());
    segment_.run(ctx, true, [&] {
      trainer_->stage().decode(ctx, one_.view().slice(1, 1).reshaped({1, 1}),
                               {past, one_.view().slice(0, 1)}, logits_.view());
    });
    return fetched();
  }

 private:
  Tensor fetched() {
    Context& ctx = trainer_->context();
    Tensor host(Device::cpu, options_.compute, {kVocabulary});  // the rest is padding
    copy(ctx, logits_.view().reshaped({logits_.view().numel()}).slice(0, kVocabulary), host.view());
    synchronize(ctx);
    return host;
  }
  static train::TrainerOptions cached(const train::Config& config) {
    train::TrainerOptions options =
        train::trainer_options(config, test::world().local_rank(), false);
    options.generation = model::Generation::cached;
    options.B = 1;
    return options;
  }
  train::TrainerOptions options_;
  mesh::Mesh mesh_;
  model::MemoryPlan plan_;
  std::unique_ptr<train::Trainer> trainer_;
  Tensor logits_;
  Tensor one_{Device::cuda, DType::i32, {2}};  ///< the past and a token
  GraphSegment segment_;
};

class GpuModelCache : public test::GpuTest {};

TEST_F(GpuModelCache, GivesTheLogitsOfRecomputation) {
  std::vector<std::int32_t> tokens(kContext);
  std::iota(tokens.begin(), tokens.end(), 100);
  for (const test::Overrides& family :
       {test::Overrides{"model.family=gpt2"},
        test::Overrides{"model.family=llama", "model.kv_heads=2"},
        test::Overrides{"model.family=llama", "model.attention_sinks=true", "model.window=17"},
        test::Overrides{"model.family=llama", "model.mup_base_width=24",
                        "model.mup_base_head_width=6"}}) {
    for (const char* compute : {"fp32", "bf16"}) {
      CachedModel model(test::read_model(
          kDeck, family + test::Overrides{std::string("precision.compute=") + compute}));
      const double expected = compute == std::string("fp32") ? 1e-5 : 0.03;
      const std::string what = family.front() + " in " + compute;
      (void)model.decode({tokens.begin(), tokens.begin() + 7}, 0);
      Tensor piecewise = model.decode({tokens.begin() + 7, tokens.begin() + 20}, 7);
      for (Dim t = 20; t < kContext; ++t) {
        piecewise = model.decode({tokens[static_cast<std::size_t>(t)]}, t);
      }
      const Tensor whole = model.decode(tokens, 0);
      EXPECT_LE(test::relative_difference(piecewise.view(), whole.view()), expected) << what;
    }
  }
}

/// Prompts in parts of many tokens, one alone and several in pages.
TEST_F(GpuModelCache, PromptsInPartsGiveTheLogitsOfOnePass) {
  std::vector<std::int32_t> tokens(300);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(37 * i % kVocabulary);
  }
  const auto part = [&](Dim first, Dim last) {
    return std::vector<std::int32_t>(tokens.begin() + first, tokens.begin() + last);
  };
  for (const test::Overrides& heads :
       {test::Overrides{"model.heads=4"}, test::Overrides{"model.heads=8", "model.kv_heads=2"},
        test::Overrides{"model.heads=4", "model.kv_heads=1", "model.window=70"},
        test::Overrides{"model.heads=2", "model.attention_sinks=true"}}) {
    for (const char* compute : {"fp32", "bf16"}) {
      SCOPED_TRACE(testing::PrintToString(heads) + " in " + compute);
      const auto config = test::read_model(
          kDeck,
          heads + test::Overrides{"model.family=llama", "model.width=512", "model.context=300",
                                  std::string("precision.compute=") + compute});
      const double expected = compute == std::string("fp32") ? 1e-5 : 0.03;
      CachedModel model(config);
      const Tensor whole = model.decode(tokens, 0);
      (void)model.decode(part(0, 33), 0);
      (void)model.decode(part(33, 130), 33);
      (void)model.decode(part(130, 135), 130);
      const Tensor in_parts = model.decode(part(135, 300), 135);
      EXPECT_LE(test::relative_difference(in_parts.view(), whole.view()), expected);

      generate::Generator generator(test::world(), config, nullptr, {.rows = 3});
      const generate::Prompts prompts = {part(0, 97), tokens, part(0, 200)};
      generator.prompt_logits(
          prompts, [&](std::size_t prompt, std::size_t position, std::span<const float> logits) {
            if (prompt != 1 || position + 1 != tokens.size()) return;
            const Tensor found =
                test::tensor_of(DType::f32, {kVocabulary}, {logits.begin(), logits.end()});
            EXPECT_LE(test::relative_difference(found.view(), whole.view()), expected);
          });
    }
  }
}

/// Counts tokens of texts.
class Count final : public generate::TokenListener {
 public:
  bool token(std::size_t /*prompt*/, const generate::NextToken& /*next*/) override {
    ++tokens;
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return false; }

  int tokens = 0;
};

TEST_F(GpuModelCache, TrainingIsTheSameWithTextsBetweenItsSteps) {
  for (const char* compute : {"fp32", "bf16"}) {
    const test::Overrides deck = {
        "model.family=llama",     std::string("precision.compute=") + compute,
        "run.deterministic=true", "train.microbatch=3",
        "train.global_batch=6",   "train.steps=6"};
    const auto sampling = test::read_model(
        kDeck, deck + test::Overrides{"train.sample_every=1", "data.vocabulary=bytes"});
    test::ModelRun plain(test::read_model(kDeck, deck));
    test::ModelRun sampled(sampling, true);
    generate::Generator generator(sampled.trainer(), sampling);
    for (int step = 1; step <= 6; ++step) {
      EXPECT_EQ(plain.step(step), sampled.step(step)) << compute << " step " << step;
      generate::SamplingOptions options;
      options.max_tokens = 50;
      Count count;
      (void)generator.generate({{1, 2, 3}, {4}}, options, count);
      EXPECT_EQ(count.tokens, 100);
    }
    EXPECT_EQ(sampled.trainer().arenas().activations.highest_touched(), sampled.plan().activations);
  }
}

/// Notes the tokens of texts.
class Ids final : public generate::TokenListener {
 public:
  explicit Ids(std::size_t prompts) : of(prompts) {}
  bool token(std::size_t prompt, const generate::NextToken& next) override {
    of[prompt].push_back(next.id);
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return false; }

  generate::Prompts of;
};

/// In fp32, where the likeliest tokens are hardly ever close to each other.
TEST_F(GpuModelCache, TextsOfAnyLengthsTogetherAreThoseOfEachAlone) {
  generate::Prompts prompts;
  for (const int length : {1, 5, 64, 17, 1, 130, 63, 200, 65, 5, 33}) {
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((31 * length + 7 * i) % 503);
    prompts.push_back(prompt);
  }
  generate::SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 90;
  for (const test::Overrides& family :
       {test::Overrides{"model.family=gpt2"}, test::Overrides{"model.family=llama"},
        test::Overrides{"model.family=llama", "model.kv_heads=1", "model.window=70"}}) {
    const auto config = test::read_model(
        kDeck, family + test::Overrides{"model.context=160", "precision.compute=fp32"});
    const auto texts = [&](const generate::GeneratorSize& size) {
      generate::Generator generator(test::world(), config, nullptr, size);
      Ids ids(prompts.size());
      (void)generator.generate(prompts, options, ids);
      EXPECT_EQ(generator.preempted() > 0, size.cache_tokens > 0);
      return ids.of;
    };
    const generate::Prompts alone = texts({.rows = 1});
    for (const generate::GeneratorSize& size :
         {generate::GeneratorSize{.rows = 3}, generate::GeneratorSize{.rows = 11},
          generate::GeneratorSize{.rows = 5, .cache_tokens = 512}}) {
      EXPECT_EQ(texts(size), alone) << family.back() << ", " << size.rows << " rows";
    }
  }
}

TEST_F(GpuModelCache, AReplayedGraphGivesTheBitsOfTheCalls) {
  for (const test::Overrides& family :
       {test::Overrides{"model.family=gpt2", "model.mup_base_width=24"},
        test::Overrides{"model.family=llama", "model.kv_heads=2"}}) {
    for (const char* compute : {"fp32", "bf16"}) {
      const auto config = test::read_model(
          kDeck, family + test::Overrides{std::string("precision.compute=") + compute});
      CachedModel called(config);
      CachedModel replayed(config);
      const std::vector<std::int32_t> prompt = {1, 500, 7};
      (void)called.decode(prompt, 0);
      (void)called.decode({42}, 3);
      replayed.multiply_like(called);
      (void)replayed.decode(prompt, 0);
      for (Dim t = 3; t < kContext; ++t) {
        const auto token = static_cast<std::int32_t>(13 * t % kVocabulary);
        const Tensor expected = called.decode({token}, t);
        ASSERT_TRUE(test::same_bits(replayed.replay(token, t).view(), expected.view()))
            << family.front() << " in " << compute << ", token " << t;
      }
    }
  }
}

/// With run.deterministic, of a trainer that only evaluates and of one that trains.
TEST_F(GpuModelCache, ATokenHasTheLogProbabilityOfTheForwardPass) {
  generate::Prompts prompts;
  for (const int length : {1, 37, 5, 100, 64}) {
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < length; ++i) prompt.push_back((31 * length + 7 * i) % 503);
    prompts.push_back(prompt);
  }
  for (const test::Overrides& family :
       {test::Overrides{"model.family=gpt2", "precision.compute=bf16"},
        test::Overrides{"model.family=gpt2", "precision.compute=fp32"},
        test::Overrides{"model.family=llama", "model.kv_heads=1", "precision.compute=bf16"},
        test::Overrides{"model.family=llama", "model.window=70", "precision.compute=bf16"},
        test::Overrides{"model.family=llama", "data.documents=masked", "data.end_token=0",
                        "precision.compute=bf16"},
        test::Overrides{"model.family=llama", "model.logit_softcap=5", "model.mup_base_width=64",
                        "precision.compute=bf16"}}) {
    SCOPED_TRACE(testing::PrintToString(family));
    const auto config = test::read_model(
        kDeck,
        family + test::Overrides{"model.context=160", "model.width=256", "train.microbatch=3",
                                 "train.global_batch=3", "run.deterministic=true"});
    for (const bool training : {false, true}) {
      for (const Dim rows : {1, 5}) {
        const auto forward = train::trainer_options(config, test::world().local_rank(), training);
        EXPECT_EQ(test::differing_losses(config, {.rows = rows}, forward, prompts, 30), 0)
            << rows << " rows, " << (training ? "training" : "evaluating");
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
