// SPDX-License-Identifier: Apache-2.0
// Texts of different lengths that run together are those that each gets alone.
#include <gtest/gtest.h>

#include "hyperslab/core/error.hpp"
#include "hyperslab/generate/generate.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"
#include "unequal_texts.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

const std::vector<std::vector<std::string>>& generator_kinds() {
  static const std::vector<std::vector<std::string>> all = {
      {"model.family=gpt2"},
      {"model.family=llama", "model.kv_heads=2"},
      {"model.family=llama", "model.window=5", "model.attention_sinks=true"},
      {"model.position=sinusoidal", "model.norm_place=post"}};
  return all;
}

TEST(Generator, PromptsOfAnyLengthsGetTogetherWhatEachGetsAlone) {
  for (const auto& overrides : generator_kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = small_config(overrides, 1);
    Generator alone(test::world(), config, nullptr, {});
    Generator four(test::world(), config, nullptr, {.rows = 4});
    Generator many(test::world(), config, nullptr, {.rows = 16});
    Generator whole(test::world(), config, nullptr,
                    {.rows = 5, .generation = model::Generation::whole});
    for (const double temperature : {0.0, 1.3}) {
      const SamplingOptions options = options_of(temperature, 25);
      const Prompts expected = together(alone, options, temperature > 0);
      EXPECT_EQ(together(four, options, true), expected);
      EXPECT_EQ(together(many, options, true), expected);
      EXPECT_EQ(together(whole, options, true), expected) << "without a cache";
      if (temperature > 0) continue;
      EXPECT_EQ(together(four, options, false), expected) << "chosen where the model runs";
    }
    SamplingOptions drawn = options_of(1.3, 25);
    drawn.repetition_penalty = 1;
    drawn.top_p = 0.9;
    EXPECT_EQ(together(four, drawn, false), together(alone, drawn, true)) << "drawn there";
  }
}

TEST(Generator, AFullCacheMakesTextsWaitAndChangesNone) {
  const train::Config config = small_config({"model.family=llama", "model.context=100"}, 1);
  Generator roomy(test::world(), config, nullptr, {.rows = 6});
  Generator tight(test::world(), config, nullptr, {.rows = 6, .cache_tokens = 192});
  EXPECT_EQ(roomy.cache().pages, 12);
  EXPECT_EQ(tight.cache().pages, 3);
  EXPECT_LT(tight.cache_bytes(), roomy.cache_bytes());
  Generator whole(test::world(), config, nullptr,
                  {.rows = 6, .cache_tokens = 192, .generation = model::Generation::whole});
  EXPECT_EQ(whole.cache_bytes(), 0);
  const SamplingOptions options = options_of(1.1, 90);
  const Prompts expected = together(roomy, options, true);
  EXPECT_EQ(together(tight, options, true), expected);
  EXPECT_EQ(together(whole, options, true), expected);
  EXPECT_GT(tight.preempted(), 0);
  EXPECT_GT(whole.preempted(), 0);
  EXPECT_EQ(roomy.preempted(), 0);
  EXPECT_THROW(Generator(test::world(), config, nullptr, {.rows = 2, .cache_tokens = 127}), Error);
}

/// Joins at any time, while others run.
TEST(Generator, TextsJoinThoseThatRun) {
  const train::Config config = small_config({"model.family=llama"}, 1);
  Generator alone(test::world(), config, nullptr, {});
  Generator joined(test::world(), config, nullptr, {.rows = 3});
  const SamplingOptions options = options_of(1.3, 9);
  const Prompts prompts = unequal_prompts();
  HeardIds ids(prompts.size(), true);
  GenerateStats stats;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    joined.begin(prompts[i], options, i, ids);
    for (std::size_t pass = 0; pass < i % 5; ++pass) (void)joined.step(stats);
  }
  while (joined.step(stats)) {
  }
  EXPECT_EQ(ids.of, together(alone, options, true));
}

TEST(Generator, PromptsAreScoredTogetherAsAlone) {
  const train::Config config = small_config({"model.family=llama", "model.kv_heads=2"}, 1);
  Generator alone(test::world(), config, nullptr, {});
  Generator four(test::world(), config, nullptr, {.rows = 4});
  Prompts prompts = unequal_prompts();
  std::erase_if(prompts, [](const auto& prompt) { return prompt.size() > 12; });
  const auto scores = [&](Generator& generator) {
    std::vector<std::vector<float>> all(prompts.size());
    generator.prompt_logits(prompts, [&](std::size_t prompt, std::size_t position, auto logits) {
      EXPECT_EQ(all[prompt].size(), position * logits.size());
      all[prompt].insert(all[prompt].end(), logits.begin(), logits.end());
    });
    return all;
  };
  const auto expected = scores(alone);
  Generator whole(test::world(), config, nullptr,
                  {.rows = 4, .generation = model::Generation::whole});
  for (const auto& found : {scores(four), scores(whole)}) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(found[i].size(), expected[i].size());
      for (std::size_t j = 0; j < found[i].size(); ++j) {
        ASSERT_NEAR(found[i][j], expected[i][j], 1e-5) << i << " " << j;
      }
    }
  }
}

/// The error of one that fails is reported; the others go on.
class Fails final : public TokenListener {
 public:
  bool token(std::size_t prompt, const NextToken& /*next*/) override {
    if (prompt == 1) throw Error(ExitCode::numerics, "no number");
    ++tokens;
    return true;
  }
  void end(std::size_t /*prompt*/) override { ++ended; }
  void fail(std::size_t prompt, const std::exception_ptr& /*error*/) override { failed += prompt; }
  [[nodiscard]] bool wants_logits() const override { return false; }
  int tokens = 0;
  int ended = 0;
  std::size_t failed = 0;
};

TEST(Generator, AnErrorOfOneTextEndsItAlone) {
  const train::Config config = small_config({"model.family=llama"}, 1);
  Generator generator(test::world(), config, nullptr, {.rows = 3});
  SamplingOptions options = options_of(0, 6);
  Fails listener;
  (void)generator.generate({{1}, {2, 3}, {4}}, options, listener);
  EXPECT_EQ(listener.tokens, 12);
  EXPECT_EQ(listener.ended, 2);
  EXPECT_EQ(listener.failed, 1U);

  for (std::size_t i = 0; i < 5; ++i) generator.begin({1, 2}, options, i, listener);
  GenerateStats stats;
  (void)generator.step(stats);
  generator.abandon(std::make_exception_ptr(Error(ExitCode::internal, "all")));
  EXPECT_TRUE(generator.is_idle());
  EXPECT_EQ(listener.failed, 1U + 0 + 1 + 2 + 3 + 4);
}

}  // namespace
}  // namespace hyperslab::generate
