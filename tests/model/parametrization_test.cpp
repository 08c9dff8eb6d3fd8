// SPDX-License-Identifier: Apache-2.0
// The maximal update parametrization (Yang et al. 2022, "Tensor Programs V").
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/model/vision_transformer.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using test::small_model;
using test::small_stage;
using test::StageHarness;

/// A stage that trains with the optimizer of a deck.
class Trained {
 public:
  explicit Trained(const ModelSpec& spec,
                   optim::OptimizerKind optimizer = optim::OptimizerKind::adamw)
      : run(spec, small_stage(4, 16, true)) {
    const optim::OptimizerConfig config = {.name = optimizer, .weight_decay = 0, .clip_norm = 0};
    const param::ParamGroup& group = run.stage->params().trained();
    Arena measuring("optimizer");
    (void)optim::make_optimizer(config, group, {false, measuring});
    arena_.emplace("optimizer", Device::cpu, measuring.used_bytes());
    optimizer_ = optim::make_optimizer(config, group, {false, *arena_});
    optimizer_->initialize(*run.ctx);
  }
  void step(float learning_rate) {
    run.input.learning_rate = learning_rate;
    (void)run.forward(Mode::train);
    run.backward();
    std::array<ops::StepResult, ops::kResultRing> results{};
    ops::finalize_step(*run.ctx, optimizer_->finalize_constants(), run.sums.view(), &run.state,
                       results.data());
    optimizer_->update_whole(*run.ctx, &run.state, run.presence.gradients().sums());
    optimizer_->update(*run.ctx, &run.state, run.presence.gradients().sums(),
                       run.stage->params().trained().all());
  }
  StageHarness run;

 private:
  std::optional<Arena> arena_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

double root_mean_square(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

/// What training can move, of all tokens of the batch: the stream after every unit, and what is
/// said of the targets.
std::map<std::string, std::vector<double>> coordinates(StageHarness& run) {
  (void)run.forward(Mode::evaluate);
  std::map<std::string, std::vector<double>> all;
  for (int unit = 0; unit + 1 < run.stage->units(); ++unit) {
    all[std::to_string(unit)] = test::to_doubles(run.stage->activation({}, unit));
  }
  all["log-probabilities"] = test::to_doubles(run.stage->results().target_scores);
  return all;
}

constexpr Dim kBaseWidth = 32;
constexpr Dim kBaseHeadWidth = 8;

/// What makes a model wider: more heads, or wider ones.
enum class Grown : std::uint8_t { heads, head_width };

struct Growing {
  Family family;
  Grown grown;
  optim::OptimizerKind optimizer = optim::OptimizerKind::adamw;
};

ModelSpec model_of_width(const Growing& growing, Dim width, bool mup) {
  ModelSpec spec = small_model(growing.family);
  const Dim of_heads = growing.grown == Grown::heads ? width : kBaseWidth;
  spec.width = width;
  spec.init_std = 0.2;  // so that heads tell tokens apart from the start
  spec.heads = spec.kv_heads = of_heads / kBaseHeadWidth;
  spec.ffn_width = 4 * width;
  if (!mup) return spec;
  spec.mup_base_width = kBaseWidth;
  if (growing.grown == Grown::head_width) spec.mup_base_head_width = kBaseHeadWidth;
  return spec;
}

/// How far a few steps move every coordinate.
std::map<std::string, double> changes(const ModelSpec& spec, optim::OptimizerKind optimizer) {
  Trained model(spec, optimizer);
  const auto before = coordinates(model.run);
  for (int step = 0; step < 4; ++step) model.step(0x1p-10F);
  std::map<std::string, double> moved;
  for (const auto& [name, values] : coordinates(model.run)) {
    moved[name] = root_mean_square(values, before.at(name));
  }
  return moved;
}

class Coordinates : public testing::TestWithParam<Growing> {
 protected:
  /// How much further than in a model of the base's width.
  static std::map<std::string, double> growths(Dim width, bool mup) {
    const optim::OptimizerKind optimizer = GetParam().optimizer;
    const auto narrow = changes(model_of_width(GetParam(), kBaseWidth, mup), optimizer);
    std::map<std::string, double> out;
    for (const auto& [name, change] : changes(model_of_width(GetParam(), width, mup), optimizer)) {
      out[name] = change / narrow.at(name);
    }
    return out;
  }
};

TEST_P(Coordinates, MoveAlikeAtEveryWidth) {
  for (const Dim width : {kBaseWidth / 2, 2 * kBaseWidth, 4 * kBaseWidth, 8 * kBaseWidth}) {
    for (const auto& [name, growth] : growths(width, true)) {
      EXPECT_LT(growth, 1.5) << name << " at " << width;
      EXPECT_GT(growth, 0.67) << name << " at " << width;
    }
  }
}

/// Without it they move much further, by which the test above is known to be able to fail.
TEST_P(Coordinates, MoveFurtherInWideModelsWithoutIt) {
  for (const auto& [name, growth] : growths(8 * kBaseWidth, false)) {
    if (name == "0") continue;  // rows of a table, which move as far in every model
    EXPECT_GT(growth, 3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Coordinates,
    testing::Values(Growing{Family::gpt2, Grown::heads}, Growing{Family::llama, Grown::heads},
                    Growing{Family::gpt2, Grown::head_width},
                    Growing{Family::llama, Grown::head_width},
                    Growing{Family::gpt2, Grown::heads, optim::OptimizerKind::muon},
                    Growing{Family::llama, Grown::heads, optim::OptimizerKind::muon}));

void scale(View values, float factor) {
  for (float& value : values.span<float>()) value *= factor;
}

/// Makes the weights of a standard model compute what a model of 16 times its base's width does:
/// its matrices begin at a quarter, and its logits are a sixteenth. Powers of two are exact.
void imitate(StageHarness& standard) {
  for (const param::Param* param : standard.stage->params().trained().params()) {
    if (param->role == param::Role::matrix) scale(param->master, 0x1p-2F);
    if (param->role == param::Role::head) scale(param->master, 0x1p-4F);
  }
}

void expect_as_imitated(StageHarness& wide, StageHarness& standard) {
  imitate(standard);

  EXPECT_EQ(wide.forward(Mode::train), standard.forward(Mode::train));
  wide.backward();
  standard.backward();

  const auto& found = wide.stage->params().trained().params();
  const auto& expected = standard.stage->params().trained().params();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(test::to_doubles(found[i]->master), [&] {
      auto values = test::to_doubles(expected[i]->master);
      if (found[i]->role == param::Role::head) {
        for (double& value : values) value *= 0x1p4;
      }
      return values;
    }()) << found[i]->name;
    if (found[i]->role == param::Role::head) scale(expected[i]->gradient, 0x1p-4F);
    EXPECT_EQ(test::to_doubles(found[i]->gradient), test::to_doubles(expected[i]->gradient))
        << found[i]->name;
  }
  EXPECT_EQ(wide.forward(Mode::evaluate), standard.forward(Mode::evaluate));
}

TEST(Parametrization, IsAStandardModelWithOtherInitialValuesAndAScaledHead) {
  for (const NormPlace place : {NormPlace::pre, NormPlace::post}) {
    ModelSpec spec = small_model(Family::llama);  // its head has a matrix of its own
    spec.norm_place = place;
    spec.logit_softcap = 2;
    StageOptions options = small_stage(2, 16, true);
    options.z_loss = 0.1F;
    spec.scores.scale = std::sqrt(2.0) / 8;  // of heads of 8 that were 2
    StageHarness standard(spec, options);
    spec.scores.scale = 0;
    spec.mup_base_width = spec.width / 16;
    spec.mup_base_head_width = 2;
    StageHarness wide(spec, options);

    expect_as_imitated(wide, standard);
  }
}

TEST(Parametrization, HoldsForVisionTransformers) {
  ModelSpec spec = small_model(Family::vit);
  spec.image = {.size = 16, .patch = 8, .classes = 7, .pooling = Pooling::mean};
  spec.vocabulary = 7;
  spec.context = spec.image.tokens();
  const auto harness = [](const ModelSpec& of) {
    const StageOptions options = small_stage(3, of.context, true);
    auto made = std::make_unique<StageHarness>(
        [=] { return std::make_unique<VisionTransformer>(of, options); }, options, 7);
    const Batch& batch = made->stage->batch({});
    const Tensor patches = test::random_tensor(DType::f32, batch.patches.shape(), 3);
    std::ranges::copy(patches.view().span<float>(), batch.patches.span<float>().begin());
    std::ranges::copy(std::array{0, 1, 5, 5, 6, 2}, batch.labels.span<std::int32_t>().begin());
    std::ranges::fill(batch.label_weights.span<float>(), 1.0F);
    return made;
  };
  const auto standard = harness(spec);
  spec.mup_base_width = spec.width / 16;
  const auto wide = harness(spec);

  expect_as_imitated(*wide, *standard);
}

TEST(Parametrization, OfTheBaseItselfChangesNoBit) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    ModelSpec spec = small_model(family);
    Trained off(spec);
    spec.mup_base_width = spec.width;
    spec.mup_base_head_width = spec.head_width();
    EXPECT_EQ(identity(spec), identity(small_model(family)));
    Trained on(spec);
    for (int step = 0; step < 3; ++step) {
      off.step(1e-2F);
      on.step(1e-2F);
    }

    const auto masters = [](const Trained& of) {
      return test::to_doubles(of.run.stage->params().trained().master().data);
    };
    EXPECT_EQ(masters(on), masters(off));
  }
}

/// Along a random direction in every parameter, with a tied table and logits divided by three.
TEST(Parametrization, GradientsMatchFiniteDifferences) {
  ModelSpec spec = small_model(Family::gpt2);
  spec.mup_base_width = 11;
  spec.mup_base_head_width = 3;
  spec.init_std = 0.2;
  StageOptions options = small_stage(2, 16, true);
  options.z_loss = 0.05F;
  StageHarness run(spec, options);
  (void)run.forward(Mode::train);
  run.backward();
  for (const std::size_t index : {0, 1, 3, 4, 9, 40}) {
    const param::Param& param = *run.stage->params().trained().params().at(index);
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
      (void)run.forward(Mode::train);
      const float* sums = run.sums.view().data<float>();
      return (sums[ops::kSumLoss] + sums[ops::kSumZLoss]) / sums[ops::kSumTokens];
    };
    const double up = moved(1e-2);
    const double down = moved(-2e-2);
    (void)moved(1e-2);
    EXPECT_NEAR((up - down) / 2e-2, expected, 2e-2 * std::abs(expected) + 1e-4) << param.name;
  }
}

TEST(Parametrization, IdentitiesNameWhatChangesTheModel) {
  using Differences = std::vector<std::pair<std::string, std::string>>;
  const ModelSpec plain = small_model(Family::gpt2);  // width 32, heads of 8
  ModelSpec wide = plain;
  wide.mup_base_width = 16;
  EXPECT_EQ(differing_choices(identity(plain), identity(wide)),
            (Differences{{"mup_base_width=default", "mup_base_width=16"}}));
  wide.mup_base_head_width = 4;
  EXPECT_EQ(wide.scale_of_scores(), 0.25);  // the root of 4, over 8
  EXPECT_EQ(differing_choices(identity(plain), identity(wide)),
            (Differences{{"mup_base_width=default", "mup_base_width=16"},
                         {"mup_base_head_width=default", "mup_base_head_width=4"}}));
}

}  // namespace
}  // namespace hyperslab::model
