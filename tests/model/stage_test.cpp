// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/stage.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "support/tensors.hpp"

namespace hyperslab::model {
namespace {

ModelSpec small(Family family) {
  ModelSpec spec = preset(family);
  spec.layers = 3;
  spec.width = 32;
  spec.heads = 4;
  spec.kv_heads = family == Family::llama ? 2 : 4;
  spec.ffn_width = 48;
  spec.vocabulary = 101;
  spec.context = 16;
  return spec;
}

/// A stage with its memory, planned on meta first.
class Harness {
 public:
  Harness(const ModelSpec& spec, StageOptions options) : options_(options) {
    Arenas measuring = Arenas::measuring();
    Context meta(Device::meta);
    Stage planned(spec, options, measuring, *dp::make_replicated());
    run_once(planned, meta);
    arenas_.emplace(Arenas::real(Device::cpu, measuring.used(), false));
    ctx = std::make_unique<Context>(Device::cpu, meta.workspace_high_water());
    stage.emplace(spec, options, *arenas_, *strategy);
    stage->initialize(*ctx);
    sums = Tensor(Device::cpu, DType::f32, {ops::kSumCount});
    input.step = 1;
    input.inverse_tokens = 1.0F / static_cast<float>(options.B * options.T);
    random_batch(7);
  }

  void random_batch(std::uint64_t seed) {
    const BatchViews& batch = stage->batch({});
    const auto vocabulary = static_cast<std::uint32_t>(stage->spec().vocabulary);
    const auto tokens = batch.tokens.span<std::int32_t>();
    const auto targets = batch.targets.span<std::int32_t>();
    const auto order = batch.token_sort_index.span<std::int32_t>();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const PhiloxCounter words = philox(philox_counter(i, 1), seed);
      tokens[i] = static_cast<std::int32_t>(words.x[0] % vocabulary);
      targets[i] = static_cast<std::int32_t>(words.x[1] % vocabulary);
      order[i] = static_cast<std::int32_t>(i);
    }
    std::ranges::stable_sort(
        order, {}, [&](std::int32_t place) { return tokens[static_cast<std::size_t>(place)]; });
    const auto positions = batch.sample_position.span<std::int64_t>();
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
  }
  /// Mean loss of a forward pass.
  double forward(Mode mode) {
    ops::begin_step(*ctx, input, &state, sums.view());
    for (int unit = 0; unit < stage->units(); ++unit) {
      stage->forward(*ctx, {}, unit, mode, {&state, sums.view()}, nn::Accumulate::no);
    }
    const float* sum = sums.view().data<float>();
    return sum[ops::kSumLoss] / sum[ops::kSumTokens];
  }
  void backward() {
    for (int unit = stage->units() - 1; unit >= 0; --unit) {
      stage->backward(*ctx, {}, unit, {&state, sums.view()}, nn::Accumulate::no);
    }
  }

  std::unique_ptr<Context> ctx;
  std::unique_ptr<dp::ShardStrategy> strategy = dp::make_replicated();
  std::optional<Stage> stage;
  Tensor sums;
  ops::StepInput input;
  ops::StepState state;

 private:
  void run_once(Stage& planned, Context& meta) const {
    const View none(nullptr, DType::f32, Device::meta, {ops::kSumCount});
    for (int unit = 0; unit < planned.units(); ++unit) {
      planned.forward(meta, {}, unit, options_.training ? Mode::train : Mode::evaluate,
                      {nullptr, none}, nn::Accumulate::no);
    }
    for (int unit = planned.units() - 1; unit >= 0 && options_.training; --unit) {
      planned.backward(meta, {}, unit, {nullptr, none}, nn::Accumulate::no);
    }
    if (!options_.cache) return;
    const View tokens(nullptr, DType::i32, Device::meta, {options_.B, options_.T});
    const View logits(nullptr, DType::f32, Device::meta, {options_.B, planned.spec().vocabulary});
    planned.decode(meta, tokens, 0, logits);
  }
  StageOptions options_;
  std::optional<Arenas> arenas_;
};

StageOptions options(Dim B, Dim T, bool training) {
  StageOptions out;
  out.B = B;
  out.T = T;
  out.training = training;
  out.cache = !training;
  out.seed = 3;
  out.logits_bytes = 4096;
  return out;
}

class EveryFamily : public testing::TestWithParam<Family> {};

TEST_P(EveryFamily, LossAtInitializationIsTheLogarithmOfTheVocabulary) {
  ModelSpec spec = small(GetParam());
  spec.vocabulary = 1000;
  Harness harness(spec, options(8, 16, true));

  EXPECT_NEAR(harness.forward(Mode::evaluate) / std::log(1000.0), 1.0, 0.01);
}

TEST_P(EveryFamily, TrainingPassAndEvaluationAgreeWithoutDropout) {
  Harness harness(small(GetParam()), options(2, 16, true));

  const double training = harness.forward(Mode::train);

  EXPECT_EQ(training, harness.forward(Mode::evaluate));
}

TEST_P(EveryFamily, ForwardOnlyStageGivesTheSameLoss) {
  Harness with(small(GetParam()), options(2, 16, true));
  Harness without(small(GetParam()), options(2, 16, false));

  EXPECT_EQ(with.forward(Mode::evaluate), without.forward(Mode::evaluate));
}

/// What stands behind a place must not change what the model says at it.
TEST_P(EveryFamily, TheFutureDoesNotChangeThePast) {
  Harness harness(small(GetParam()), options(1, 16, true));
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
  Harness harness(small(GetParam()), options(1, 16, false));
  const CView tokens = harness.stage->batch({}).tokens;
  Tensor whole(Device::cpu, DType::f32, {1, 101});
  Tensor piecewise(Device::cpu, DType::f32, {1, 101});
  for (const Dim length : {1, 2, 7, 16}) {
    const auto part = [&](Dim first, Dim count) {
      return CView(tokens.data<std::int32_t>() + first, DType::i32, Device::cpu, {1, count});
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
  Harness harness(small(GetParam()), options(4, 16, true));
  const param::ParamGroup& params = harness.stage->params().trained();
  Tensor m = test::filled_tensor(DType::f32, {params.flat_size()}, 0);
  Tensor v = test::filled_tensor(DType::f32, {params.flat_size()}, 0);
  const View gradients = harness.strategy->gradients().data;
  std::memset(gradients.raw(), 0, gradients.bytes());
  const Tensor decay =
      test::filled_tensor(DType::f32, {params.flat_size() / ops::kDecayGranule}, 0);
  harness.input.learning_rate = 5e-3F;
  double loss = 0;
  for (int step = 1; step <= 150; ++step) {
    loss = harness.forward(Mode::train);
    harness.backward();
    std::array<ops::StepResult, ops::kResultRing> results{};
    ops::finalize_step(*harness.ctx, {1.0F, 0.9F, 0.95F}, harness.sums.view(), &harness.state,
                       results.data());
    ops::adamw(*harness.ctx, {}, &harness.state,
               {params.master().data, gradients, {}, decay.view()}, m.view(), v.view());
  }

  EXPECT_LT(loss, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryFamily, testing::Values(Family::gpt2, Family::llama));

TEST(Stage, KnowsItsUnitsInTheModel) {
  const ModelSpec spec = small(Family::gpt2);  // three blocks
  StageOptions of_rank = options(1, 16, true);
  of_rank.chunks = {{0, 2, 1}, {3, 2, 1}};
  Arenas measuring = Arenas::measuring();
  const Stage stage(spec, of_rank, measuring, *dp::make_replicated());

  std::vector<int> found;
  for (int unit = 0; unit < stage.units(); ++unit) found.push_back(stage.unit_of_model(unit));

  EXPECT_EQ(found, (std::vector<int>{0, 1, 3, 4}));
}

TEST(Stage, TheScaleOfEmbeddingsActsLikeALargerTable) {
  const ModelSpec plain = small(Family::llama);
  ModelSpec scaled = plain;
  scaled.embedding_scale = 4;
  Harness wanted(plain, options(2, 16, true));
  Harness found(scaled, options(2, 16, true));
  const param::Param& table = wanted.stage->params().params()[0];
  ASSERT_EQ(table.name, "embedding.token.weight");
  for (float& value : table.master.span<float>()) value *= 4;

  const double loss = wanted.forward(Mode::train);
  wanted.backward();

  EXPECT_EQ(found.forward(Mode::train), loss);  // powers of two are exact
  found.backward();
  std::vector<double> gradient = test::to_doubles(table.gradient);
  for (double& value : gradient) value *= 4;
  EXPECT_EQ(test::to_doubles(found.stage->params().params()[0].gradient), gradient);
}

TEST(Spec, SinusoidalPositionsScaleEmbeddingsUnlessTheDeckSaysOtherwise) {
  ModelSpec spec = small(Family::gpt2);
  spec.width = 64;
  EXPECT_EQ(spec.scale_of_embeddings(), 1);
  spec.position = Position::sinusoidal;
  EXPECT_EQ(spec.scale_of_embeddings(), 8);
  spec.embedding_scale = 1;
  EXPECT_EQ(spec.scale_of_embeddings(), 1);
}

TEST(Spec, IdentitiesNameTheChoicesThatDiffer) {
  using Differences = std::vector<std::pair<std::string, std::string>>;
  const ModelSpec plain = small(Family::llama);
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
  ModelSpec spec = small(Family::gpt2);
  spec.dropout = 0.3;
  Harness harness(spec, options(2, 16, true));

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
    ModelSpec spec = small(Family::llama);
    spec.dropout = 0.2;
    spec.attention = path;
    Harness harness(spec, options(2, 16, true));
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
