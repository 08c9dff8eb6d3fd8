// SPDX-License-Identifier: Apache-2.0
// Two ranks that share a model continue texts as one rank does.
#include <gtest/gtest.h>

#include "support/mpi_world.hpp"
#include "train/small_run.hpp"
#include "unequal_texts.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

constexpr double kTolerance = 2e-6;  // of logits near 1, in fp32

/// One key-value head for both ranks, vocabularies that they share unequally (67), and all that
/// changes a block's way.
const std::vector<std::vector<std::string>>& shared_kinds() {
  static const std::vector<std::vector<std::string>> all = {
      {"model.family=gpt2"},
      {"model.family=llama", "model.kv_heads=2"},
      {"model.family=llama", "model.kv_heads=1"},
      {"model.family=llama", "model.window=5", "model.attention_sinks=true",
       "model.logit_softcap=3", "model.attention_softcap=5"},
      {"model.family=llama", "model.qk_norm=head", "model.norm_place=sandwich"},
      {"model.family=gpt2", "model.parallel_block=true"},
      {"model.family=gpt2", "model.mup_base_width=8", "model.mup_base_head_width=2"},
      {"model.position=sinusoidal", "model.norm_place=post"}};
  return all;
}

/// What the leader makes of the prompts, while the other rank follows.
Prompts shared(Generator& generator, const SamplingOptions& options, bool logits,
               const Prompts& prompts = unequal_prompts()) {
  if (!generator.leads()) {
    generator.follow();
    return {};
  }
  Prompts found = together(generator, options, logits, prompts);
  generator.let_go();
  return found;
}

class TensorGroup : public testing::Test {
 protected:
  [[nodiscard]] comm::World& alone() { return *alone_; }

 private:
  std::unique_ptr<comm::World> alone_ = test::world().part(test::world().rank());
};

TEST_F(TensorGroup, TwoRanksContinueTextsAsOneDoes) {
  for (const auto& overrides : shared_kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = small_config(overrides, 1);
    Generator one(alone(), config, nullptr, {.rows = 6});
    Generator two(test::world(), config, nullptr, {.rows = 6});
    EXPECT_EQ(two.leads(), test::world().rank() == 0);
    EXPECT_TRUE(one.is_alone() && one.leads() && !two.is_alone());
    EXPECT_EQ(two.cache_bytes() < one.cache_bytes() * 7 / 10, config.model.kv_heads > 1);
    const SamplingOptions options = options_of(0, 9);
    const Prompts expected = together(one, options, false);
    const Prompts found = shared(two, options, false);
    EXPECT_EQ(found, two.leads() ? expected : Prompts());
    EXPECT_FALSE(two.has_failed());
    Generator whole(test::world(), config, nullptr,
                    {.rows = 3, .generation = model::Generation::whole});
    EXPECT_EQ(shared(whole, options, false), found) << "without a cache";
  }
}

TEST_F(TensorGroup, DrawsAndSingleTextsAreThoseOfOneRank) {
  const train::Config config = small_config({"model.family=llama", "model.kv_heads=2"}, 1);
  const SamplingOptions options = options_of(1.3, 9);
  const Prompts prompts = {{1, 2, 3}, {4, 5}};
  for (const Dim rows : {1, 2}) {
    Generator one(alone(), config, nullptr, {.rows = rows});
    Generator two(test::world(), config, nullptr, {.rows = rows});
    const Prompts expected = together(one, options, true, prompts);
    const Prompts found = shared(two, options, true, prompts);
    EXPECT_EQ(found, two.leads() ? expected : Prompts());
  }
}

/// A cache too small for all texts, and a leader that has nothing to do for a while.
TEST_F(TensorGroup, AFullCacheAndARestChangeNothing) {
  const train::Config config =
      small_config({"model.family=llama", "model.kv_heads=2", "model.context=100"}, 1);
  Generator roomy(alone(), config, nullptr, {.rows = 3});
  Generator tight(test::world(), config, nullptr, {.rows = 3, .cache_tokens = 192});
  EXPECT_LT(tight.cache_bytes(), roomy.cache_bytes() / 3) << "3 pages of 6, half their heads";
  SamplingOptions options = options_of(0, 8);
  const Prompts prompts(3, std::vector<std::int32_t>(60, 7));  // of which each needs a second page
  const Prompts expected = together(roomy, options, true, prompts);
  if (tight.leads()) {
    tight.let_rest();
    tight.let_rest();
  }
  const Prompts found = shared(tight, options, true, prompts);
  EXPECT_EQ(found, tight.leads() ? expected : Prompts());
  EXPECT_EQ(tight.preempted() > 0, tight.leads());
}

TEST_F(TensorGroup, LogitsOfWholePromptsAreThoseOfOneRank) {
  for (const auto& overrides : shared_kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = small_config(overrides, 1);
    Generator one(alone(), config, nullptr, {.rows = 4});
    for (const auto way : {model::Generation::cached, model::Generation::whole}) {
      Generator two(test::world(), config, nullptr, {.rows = 4, .generation = way});
      Prompts prompts = unequal_prompts();
      std::erase_if(prompts, [](const auto& prompt) { return prompt.size() > 12; });
      if (!two.leads()) {
        two.follow();
        continue;
      }
      std::vector<std::vector<float>> expected(prompts.size());
      std::vector<std::vector<float>> found(prompts.size());
      const auto into = [](std::vector<std::vector<float>>& all) {
        return [&all](std::size_t prompt, std::size_t /*position*/, auto logits) {
          all[prompt].insert(all[prompt].end(), logits.begin(), logits.end());
        };
      };
      one.prompt_logits(prompts, into(expected));
      two.prompt_logits(prompts, into(found));
      two.let_go();
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        ASSERT_EQ(found[i].size(), prompts[i].size() * 67);
        for (std::size_t j = 0; j < found[i].size(); ++j) {
          ASSERT_NEAR(found[i][j], expected[i][j], kTolerance) << i << " " << j;
        }
      }
    }
  }
}

/// More rows than the memory for the logits of all ranks has.
TEST_F(TensorGroup, LogitsOfLongPromptsAreThoseOfOneRank) {
  const train::Config config = small_config({"model.family=llama", "model.context=100"}, 1);
  const Prompts prompts(3, std::vector<std::int32_t>(90, 7));
  for (const auto way : {model::Generation::cached, model::Generation::whole}) {
    Generator one(alone(), config, nullptr, {.rows = 3});
    Generator two(test::world(), config, nullptr, {.rows = 3, .generation = way});
    if (!two.leads()) {
      two.follow();
      continue;
    }
    const auto logits_of = [&](Generator& generator) {
      std::vector<float> all;
      generator.prompt_logits(prompts,
                              [&](std::size_t /*prompt*/, std::size_t /*position*/, auto row) {
                                all.insert(all.end(), row.begin(), row.end());
                              });
      return all;
    };
    const std::vector<float> expected = logits_of(one);
    const std::vector<float> found = logits_of(two);
    two.let_go();
    ASSERT_EQ(found.size(), prompts.size() * 90 * 67);
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], kTolerance);
  }
}

TEST_F(TensorGroup, CachesOfDifferentSizesAreRefused) {
  const train::Config config = small_config({"model.family=llama"}, 1);
  const Dim rows = 1 + test::world().rank();
  EXPECT_THROW(Generator(test::world(), config, nullptr, {.rows = rows}), Error);
}

}  // namespace
}  // namespace hyperslab::generate
