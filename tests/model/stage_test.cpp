// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/stage.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using test::small_model;
using test::small_stage;
using test::StageHarness;
class EveryFamily : public testing::TestWithParam<Family> {};

TEST_P(EveryFamily, LossAtInitializationIsTheLogarithmOfTheVocabulary) {
  ModelSpec spec = small_model(GetParam());
  spec.vocabulary = 1000;
  StageHarness harness(spec, small_stage(8, 16, true));

  EXPECT_NEAR(harness.forward(Mode::evaluate) / std::log(1000.0), 1.0, 0.01);
}

TEST_P(EveryFamily, TrainingPassAndEvaluationAgreeWithoutDropout) {
  StageHarness harness(small_model(GetParam()), small_stage(2, 16, true));

  const double training = harness.forward(Mode::train);

  EXPECT_EQ(training, harness.forward(Mode::evaluate));
}

TEST_P(EveryFamily, ForwardOnlyStageGivesTheSameLoss) {
  StageHarness with(small_model(GetParam()), small_stage(2, 16, true));
  StageHarness without(small_model(GetParam()), small_stage(2, 16, false));

  EXPECT_EQ(with.forward(Mode::evaluate), without.forward(Mode::evaluate));
}

/// Later tokens must not change what the model says at a position.
TEST_P(EveryFamily, TheFutureDoesNotChangeThePast) {
  StageHarness harness(small_model(GetParam()), small_stage(1, 16, true));
  harness.forward(Mode::evaluate);
  const int last = harness.stage->units() - 2;
  const auto before = test::to_doubles(harness.stage->activation({}, last));

  const auto tokens = harness.stage->batch({}).tokens.span<std::int32_t>();
  for (std::size_t t = 9; t < 16; ++t) tokens[t] = (tokens[t] + 1) % 101;
  harness.forward(Mode::evaluate);
  const auto after = test::to_doubles(harness.stage->activation({}, last));

  const std::size_t border = 9 * 32;
  for (std::size_t i = 0; i < border; ++i) ASSERT_EQ(before[i], after[i]) << "element " << i;
  EXPECT_NE(before[border], after[border]);
}

TEST_P(EveryFamily, CacheGivesTheLogitsOfRecomputation) {
  StageHarness harness(small_model(GetParam()), small_stage(1, 16, false));
  const View tokens = harness.stage->batch({}).tokens;
  Tensor whole(Device::cpu, DType::f32, {1, 101});
  Tensor piecewise(Device::cpu, DType::f32, {1, 101});
  for (const Dim length : {1, 2, 7, 16}) {
    const auto part = [&](Dim first, Dim count) {
      return View(tokens.data<std::int32_t>() + first, DType::i32, Device::cpu, {1, count});
    };

    harness.stage->decode(*harness.ctx, part(0, length), 0, whole.view());
    for (Dim t = 0; t < length; ++t) {
      harness.stage->decode(*harness.ctx, part(t, 1), t, piecewise.view());
    }

    test::expect_close(piecewise.view(), whole.view(), "logits", 0.5);
  }
}

/// Adam on one batch must learn it by heart.
TEST_P(EveryFamily, OverfitsOneBatch) {
  StageHarness harness(small_model(GetParam()), small_stage(4, 16, true));
  double loss = 0;
  for (int step = 1; step <= 150; ++step) loss = harness.train_step(5e-3F);

  EXPECT_LT(loss, 0.05);
}

/// Loss of a batch after many steps, in a model whose frozen tables are far enough apart.
double learned_loss(Family family, const StageOptions& options) {
  ModelSpec spec = small_model(family);
  spec.init_std = 0.3;
  StageHarness harness(spec, options);
  const param::ParamGroup& frozen = harness.stage->params().frozen();
  const auto base = test::to_doubles(frozen.value().data);
  double loss = 0;
  for (int step = 1; step <= 200; ++step) loss = harness.train_step(5e-3F);
  EXPECT_EQ(test::to_doubles(frozen.value().data), base);
  return loss;
}

/// What training the matrices learns, adapters of full rank learn, too.
TEST_P(EveryFamily, AdaptersOfFullRankOverfitAsTheirMatricesDo) {
  StageOptions matrices = small_stage(4, 16, true);
  matrices.trained_roles = {param::Role::matrix};
  StageOptions adapters = small_stage(4, 16, true);
  adapters.adapter.rank = 32;
  adapters.adapter.alpha = 32;

  const double of_matrices = learned_loss(GetParam(), matrices);
  EXPECT_LT(of_matrices, 0.1);
  EXPECT_NEAR(learned_loss(GetParam(), adapters), of_matrices, 0.005);
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryFamily, testing::Values(Family::gpt2, Family::llama));

TEST(Stage, KnowsItsUnitsInTheModel) {
  const ModelSpec spec = small_model(Family::gpt2);  // three blocks
  StageOptions of_rank = small_stage(1, 16, true);
  of_rank.chunks = {{0, 2, 1}, {3, 2, 1}};
  Arenas measuring = Arenas::measuring();
  sharding::Presence presence;
  const Stage stage(spec, of_rank, measuring, presence);

  std::vector<int> found;
  for (int unit = 0; unit < stage.units(); ++unit) found.push_back(stage.unit_of_model(unit));

  EXPECT_EQ(found, (std::vector<int>{0, 1, 3, 4}));
}

TEST(Stage, TheScaleOfEmbeddingsActsLikeALargerTable) {
  const ModelSpec plain = small_model(Family::llama);
  ModelSpec scaled = plain;
  scaled.embedding_scale = 4;
  StageHarness expected(plain, small_stage(2, 16, true));
  StageHarness found(scaled, small_stage(2, 16, true));
  const param::Param& table = expected.stage->params().params()[0];
  ASSERT_EQ(table.name, "embedding.token.weight");
  for (float& value : table.master.span<float>()) value *= 4;

  const double loss = expected.forward(Mode::train);
  expected.backward();

  EXPECT_EQ(found.forward(Mode::train), loss);  // powers of two are exact
  found.backward();
  std::vector<double> gradient = test::to_doubles(table.gradient);
  for (double& value : gradient) value *= 4;
  EXPECT_EQ(test::to_doubles(found.stage->params().params()[0].gradient), gradient);
}

TEST(Spec, SinusoidalPositionsScaleEmbeddingsUnlessTheDeckSaysOtherwise) {
  ModelSpec spec = small_model(Family::gpt2);
  spec.width = 64;
  EXPECT_EQ(spec.scale_of_embeddings(), 1);
  spec.position = Position::sinusoidal;
  EXPECT_EQ(spec.scale_of_embeddings(), 8);
  spec.embedding_scale = 1;
  EXPECT_EQ(spec.scale_of_embeddings(), 1);
}

TEST(Spec, IdentitiesNameTheChoicesThatDiffer) {
  using Differences = std::vector<std::pair<std::string, std::string>>;
  const ModelSpec plain = small_model(Family::llama);
  ModelSpec other = plain;
  other.heads = 8;
  other.embedding_scale = 2;
  ModelSpec spelled = plain;
  spelled.embedding_scale = 1;  // what its 0 stands for
  spelled.bos_token = 5;

  EXPECT_EQ(identity(plain), identity(spelled));
  EXPECT_EQ(differing_choices(identity(plain), identity(plain)), Differences{});
  EXPECT_EQ(
      differing_choices(identity(plain), identity(other)),
      (Differences{{"heads=4", "heads=8"}, {"embedding_scale=default", "embedding_scale=2"}}));
  EXPECT_EQ(
      differing_choices(identity(other), identity(plain)),
      (Differences{{"heads=8", "heads=4"}, {"embedding_scale=2", "embedding_scale=default"}}));
}

TEST(Dropout, ActsInTrainingOnlyAndDependsOnTheStep) {
  ModelSpec spec = small_model(Family::gpt2);
  spec.dropout = 0.3;
  StageHarness harness(spec, small_stage(2, 16, true));

  const double first = harness.forward(Mode::train);
  EXPECT_EQ(first, harness.forward(Mode::train));
  EXPECT_NE(first, harness.forward(Mode::evaluate));
  harness.input.step = 2;
  EXPECT_NE(first, harness.forward(Mode::train));
}

/// With dropout, backward must use the masks of forward: a finite difference along a random
/// direction in the embedding table, in double.
TEST(Dropout, GradientMatchesAFiniteDifference) {
  for (const AttentionPath path : {AttentionPath::fused, AttentionPath::reference}) {
    ModelSpec spec = small_model(Family::llama);
    spec.dropout = 0.2;
    spec.attention = path;
    StageHarness harness(spec, small_stage(2, 16, true));
    harness.forward(Mode::train);
    harness.backward();
    const param::Param& param = harness.stage->params().params()[1];
    const auto gradient = test::to_doubles(param.gradient);
    const auto direction =
        test::to_doubles(test::random_tensor(DType::f32, param.part.count, 5).view());
    double expected = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];

    const auto moved = [&](double by) {
      const auto weight = param.master.span<float>();
      for (std::size_t i = 0; i < weight.size(); ++i) {
        weight[i] += static_cast<float>(by * direction[i]);
      }
      return harness.forward(Mode::train);
    };
    const double up = moved(1e-2);
    const double down = moved(-2e-2);

    EXPECT_NEAR((up - down) / 2e-2, expected, 2e-2 * std::abs(expected) + 1e-4);
  }
}

}  // namespace
}  // namespace hyperslab::model
