// SPDX-License-Identifier: Apache-2.0
// Texts whose tokens are guessed are those without guesses.
#include <cmath>

#include "draft_model.hpp"
#include "drafted_texts.hpp"
#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;
using test::SmallRun;

train::Config config_of(std::vector<std::string> overrides) {
  overrides.emplace_back("model.context=40");
  return small_config(overrides, 1);
}

const std::vector<std::vector<std::string>>& drafting_kinds() {
  static const std::vector<std::vector<std::string>> all = {
      {"model.family=gpt2"},
      {"model.family=llama", "model.kv_heads=2"},
      {"model.family=llama", "model.window=5", "model.attention_sinks=true"},
      {"model.position=sinusoidal", "model.norm_place=post"},
      {"model.family=llama", "experts.count=4", "experts.active=2", "experts.width=16"},
      {"model.family=llama", "adapter.rank=2"}};
  return all;
}

TEST(Drafting, TextsOfTheLikeliestTokensAreThoseWithoutDrafts) {
  for (const auto& overrides : drafting_kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = config_of(overrides);
    const SamplingOptions options = drawn_at(0, 70);  // beyond the context
    Generator plain(test::world(), config, nullptr, {.rows = 3});
    const Told expected = tell(plain, options);
    EXPECT_EQ(expected.stats.drafts.drafted, 0);
    for (const Dim rows : {1, 3, 8}) {
      Generator drafting(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 5});
      const Told found = tell(drafting, options);
      EXPECT_EQ(found.texts, expected.texts) << rows;
      EXPECT_GT(found.stats.drafts.accepted, 20) << rows;
      EXPECT_EQ(found.stats.tokens, expected.stats.tokens);
      if (rows != 3) continue;
      EXPECT_LT(found.stats.passes, expected.stats.passes * 9 / 10);
      EXPECT_EQ(tell(drafting, options, true).texts, expected.texts) << "chosen by logits";
    }
  }
}

/// Products of many rows may take scratch memory, which the plan has for all guesses.
TEST(Drafting, QuantizedMatricesTakeDrafts) {
  train::Config config = config_of({"model.family=llama"});
  config.quantization.weights = train::WeightBits::int8;
  config.quantization.activations = ops::ActivationFormat::dynamic_int8;
  config.quantization.head = true;
  Generator drafting(test::world(), config, nullptr, {.rows = 8, .draft_tokens = 9});
  const Told found = tell(drafting, drawn_at(0, 50));
  EXPECT_EQ(found.stats.tokens, 8 * 50);
  EXPECT_GT(found.stats.drafts.accepted, 50);
}

TEST(Drafting, WholeTextsWithoutACacheTakeDraftsToo) {
  const train::Config config = config_of({"model.family=llama"});
  GeneratorSize size = {.rows = 3, .generation = model::Generation::whole};
  Generator plain(test::world(), config, nullptr, size);
  size.draft_tokens = 5;
  Generator drafting(test::world(), config, nullptr, size);
  const SamplingOptions options = drawn_at(0, 50);
  const Told expected = tell(plain, options, true);
  const Told found = tell(drafting, options, true);
  EXPECT_EQ(found.texts, expected.texts);
  EXPECT_EQ(found.log_probabilities, expected.log_probabilities) << "bit by bit";
  EXPECT_GT(found.stats.drafts.accepted, 20);
}

TEST(Drafting, DrawnTextsThatAreLookedUpAreThoseWithoutDrafts) {
  const train::Config config = config_of({"model.family=llama"});
  Generator plain(test::world(), config, nullptr, {.rows = 3});
  Generator drafting(test::world(), config, nullptr, {.rows = 3, .draft_tokens = 4});
  SamplingOptions options = drawn_at(0.01, 60);
  options.top_p = 0.9;
  const Prompts greedy = tell(plain, drawn_at(0, 60)).texts;
  for (const double penalty : {1.0, 1.02}) {
    options.repetition_penalty = penalty;
    const Told expected = tell(plain, options);
    const Told found = tell(drafting, options);
    EXPECT_EQ(found.texts, expected.texts);
    EXPECT_NE(found.texts, greedy);
    EXPECT_GT(found.stats.drafts.accepted, 10);
    EXPECT_GT(found.stats.drafts.drafted, found.stats.drafts.accepted);
  }
}

TEST(Drafting, LogProbabilitiesAreTheModels) {
  const train::Config config = config_of({"model.family=llama", "run.deterministic=true"});
  Generator plain(test::world(), config, nullptr, {.rows = 3});
  Generator drafting(test::world(), config, nullptr, {.rows = 3, .draft_tokens = 5});
  const Told expected = tell(plain, drawn_at(0, 40), true);
  const Told found = tell(drafting, drawn_at(0, 40), true);
  EXPECT_EQ(found.texts, expected.texts);
  EXPECT_EQ(found.log_probabilities, expected.log_probabilities)
      << "with run.deterministic a pass over several tokens has the bits of passes over one";
}

TEST(Drafting, ATextEndsWithinADraftWhereItEndsWithoutOne) {
  const train::Config config = config_of({"model.family=gpt2"});
  Generator plain(test::world(), config, nullptr, {.rows = 4});
  Generator drafting(test::world(), config, nullptr, {.rows = 4, .draft_tokens = 6});
  const Told whole = tell(plain, drawn_at(0, 40));
  for (std::size_t place = 20; place < 32; ++place) {  // where texts repeat themselves
    SamplingOptions options = drawn_at(0, 40);
    const std::int32_t token = whole.texts[1][place];
    const Told stopped = tell(drafting, options, false, repeating_prompts(), token);
    EXPECT_EQ(stopped.texts, tell(plain, options, false, repeating_prompts(), token).texts);
    options.stop_tokens = {token};
    EXPECT_EQ(tell(drafting, options).texts, tell(plain, options).texts);
    options = drawn_at(0, static_cast<std::int64_t>(place));
    EXPECT_EQ(tell(drafting, options).texts, tell(plain, options).texts);
  }
}

TEST(Drafting, ModelsGuessAndTheTextIsTheModels) {
  const train::Config config = config_of({"model.family=llama", "model.init_std=0.3"});
  const train::Config small = small_config({"model.family=llama", "model.layers=1", "model.width=8",
                                            "model.heads=2", "model.context=24"},
                                           1);
  for (const Dim rows : {1, 3}) {
    Generator plain(test::world(), config, nullptr, {.rows = rows});
    Generator drafting(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 3}, {},
                       {.config = &small});
    EXPECT_GT(drafting.draft_cache_bytes(), 0);
    EXPECT_GT(drafting.draft_footprint().rank_peak, drafting.draft_cache_bytes());
    const Told found = tell(drafting, drawn_at(0, 70));
    EXPECT_EQ(found.texts, tell(plain, drawn_at(0, 70)).texts);
    EXPECT_GT(found.stats.drafts.drafted, 50);
  }
}

/// In the first half of a context, which both read from its beginning.
TEST(Drafting, AModelThatGuessesForItselfIsAlwaysRight) {
  const train::Config config =
      small_config({"model.family=llama", "model.init_std=0.3", "model.context=160"}, 1);
  for (const Dim rows : {1, 5}) {
    Generator plain(test::world(), config, nullptr, {.rows = rows});
    Generator drafting(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 4}, {},
                       {.config = &config});
    SamplingOptions options = drawn_at(0, 61);
    std::vector<SamplingOptions> all(3, options);
    all[1].temperature = 1;
    all[1].top_p = 0.9;
    all[2].temperature = 0.7;
    all[2].repetition_penalty = 1.3;
    for (const SamplingOptions& each : all) {
      const Told found = tell(drafting, each);
      EXPECT_EQ(found.stats.drafts.accepted, found.stats.drafts.drafted);
      EXPECT_EQ(found.stats.tokens, 61 * 8);
      EXPECT_EQ(found.stats.drafts.accepted, 8 * 48) << "60 tokens in passes of 5";
      if (each.temperature > 0) continue;
      EXPECT_EQ(found.texts, tell(plain, each).texts);
    }
  }
}

TEST(Drafting, AFullCacheMakesTextsWaitAndChangesNone) {
  const train::Config config =
      small_config({"model.family=llama", "model.context=100", "model.init_std=0.3"}, 1);
  const SamplingOptions options = drawn_at(0, 120);
  Generator plain(test::world(), config, nullptr, {.rows = 6});
  const Prompts expected = tell(plain, options).texts;
  const GeneratorSize tight = {.rows = 6, .cache_tokens = 192, .draft_tokens = 8};
  for (const train::Config* model : {static_cast<const train::Config*>(nullptr), &config}) {
    Generator drafting(test::world(), config, nullptr, tight, {}, {.config = model});
    for (int round = 0; round < 2; ++round) EXPECT_EQ(tell(drafting, options).texts, expected);
    EXPECT_GT(drafting.preempted(), 0);
  }
}

TEST(Drafting, SizesAndVocabulariesThatDifferAreRefused) {
  const train::Config config = config_of({"model.family=llama"});
  const train::Config other = small_config({"model.vocabulary=68"}, 1);
  EXPECT_THROW(Generator(test::world(), config, nullptr, {.rows = 1, .draft_tokens = 31}), Error);
  try {
    const Generator generator(test::world(), config, nullptr, {.rows = 1, .draft_tokens = 2}, {},
                              {.config = &other});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("68 ids"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("67"), std::string::npos) << error.what();
  }
}

/// A draft's model reads again only what it must, and holds no page of a text that has ended.
TEST(DraftModel, GuessesWhatItsModelSaysAndGivesPagesBack) {
  const train::Config config =
      small_config({"model.family=llama", "model.context=64", "train.microbatch=2"}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  train::TrainerOptions options;
  options.generation = model::Generation::cached;
  SmallRun run(config, mesh, 0, options);
  Generator generator(run.trainer(), config);
  std::vector<std::int32_t> text = {1, 2, 3};
  const std::vector<std::int32_t> expected =
      tell(generator, drawn_at(0, 20), false, {text}).texts.front();
  TextModel model(run.trainer(), {.vocabulary = config.model.vocabulary}, nullptr);
  DraftModel drafts(model);
  const std::int64_t pages = drafts.free_pages();
  Sampler sampler(drawn_at(0, 20), 0, config.model.vocabulary);
  for (std::size_t said = 0; said < 16;) {
    std::vector<Draft> draft(1);
    draft[0] = {.id = 7, .text = text, .sampler = &sampler, .most = 4};
    drafts.draft(draft);
    const std::vector<std::int32_t> right(expected.begin() + static_cast<int>(said),
                                          expected.begin() + static_cast<int>(said) + 4);
    EXPECT_EQ(draft[0].tokens, right) << said;
    // The text takes one of the four guesses, then two and so on, with the token that follows.
    const std::size_t taken = 1 + said % 5;
    text.insert(text.end(), expected.begin() + static_cast<int>(said),
                expected.begin() + static_cast<int>(said + taken));
    said += taken;
  }
  const auto guesses_of = [&](DraftModel& from) {
    std::vector<Draft> draft(1);
    draft[0] = {.id = 7, .text = text, .sampler = &sampler, .most = 4};
    from.draft(draft);
    return draft[0].tokens;
  };
  // Guesses that the text did not take are forgotten, also some passes later.
  (void)guesses_of(drafts);
  text.insert(text.end(), {60, 61, 62, 63, 64});
  const std::vector<std::int32_t> found = guesses_of(drafts);
  DraftModel fresh(model);
  EXPECT_EQ(guesses_of(fresh), found);
  EXPECT_LT(drafts.free_pages(), pages);
  drafts.end(7);
  drafts.end(8);
  EXPECT_EQ(drafts.free_pages(), pages);
}

/// The distribution of three tokens after a prompt, against the model's, whose draws are counted.
class Counted {
 public:
  static constexpr std::int32_t kV = 5;
  explicit Counted(const train::Config& config) {
    Generator model(test::world(), config, nullptr, {.rows = 16});
    Prompts prompts;
    for (std::int32_t i = 0; i < kV * kV; ++i) prompts.push_back({1, 2, 1, i / kV, i % kV});
    shares_.assign(kV * kV * kV, 0);
    std::vector<std::vector<std::vector<double>>> rows(prompts.size());
    model.prompt_logits(prompts, [&](std::size_t prompt, std::size_t /*position*/, auto logits) {
      std::vector<double> row;
      double total = 0;
      for (const float logit : logits) total += row.emplace_back(std::exp(logit));
      for (double& share : row) share /= total;
      rows[prompt].push_back(row);
    });
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      const auto& row = rows[i / kV];
      shares_[i] = row[2][i / kV / kV] * row[3][i / kV % kV] * row[4][i % kV];
    }
  }
  /// Chi square over its degrees of freedom; cells of few expected counts are one.
  [[nodiscard]] double chi_square(Generator& generator, std::int64_t& accepted) const {
    constexpr std::size_t kTexts = 6000;
    const Told told = tell(generator, drawn_at(1, 5), false, Prompts(kTexts, {1, 2, 1}));
    accepted = told.stats.drafts.accepted;
    std::vector<double> counts(shares_.size());
    for (const auto& text : told.texts) {
      const std::int32_t cell = (text[0] * kV + text[1]) * kV + text[2];
      ++counts[static_cast<std::size_t>(cell)];
    }
    double sum = 0;
    double rest = 0;
    double rest_expected = 0;
    int cells = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double expected = kTexts * shares_[i];
      if (expected < 8) {
        rest += counts[i];
        rest_expected += expected;
        continue;
      }
      sum += std::pow(counts[i] - expected, 2) / expected;
      ++cells;
    }
    if (rest_expected > 8) sum += std::pow(rest - rest_expected, 2) / rest_expected;
    EXPECT_GT(cells, 12);
    return sum / cells;
  }

 private:
  std::vector<double> shares_;
};

TEST(Drafting, DrawnTextsHaveTheModelsDistribution) {
  const std::vector<std::string> tiny = {"model.family=llama", "model.vocabulary=5",
                                         "model.layers=1",     "model.width=8",
                                         "model.heads=2",      "model.init_std=0.6"};
  const train::Config config = small_config(tiny, 1);
  std::vector<std::string> others = tiny;
  others.emplace_back("run.seed=12");
  const train::Config other = small_config(others, 1);
  const Counted expected(config);
  std::int64_t accepted = 0;
  const GeneratorSize size = {.rows = 16, .draft_tokens = 3};
  Generator looked_up(test::world(), config, nullptr, size);
  EXPECT_LT(expected.chi_square(looked_up, accepted), 2.2);
  EXPECT_GT(accepted, 100);
  Generator drafting(test::world(), config, nullptr, size, {}, {.config = &other});
  EXPECT_LT(expected.chi_square(drafting, accepted), 2.2);
  EXPECT_GT(accepted, 1000);
  Generator wrong(test::world(), other, nullptr, size);  // as if its guesses were never refused
  EXPECT_GT(expected.chi_square(wrong, accepted), 10);
}

}  // namespace
}  // namespace hyperslab::generate
