// SPDX-License-Identifier: Apache-2.0
// A vision transformer on the stage.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "hyperslab/model/vision_transformer.hpp"
#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using test::StageHarness;

constexpr Dim kB = 12;

ModelSpec small_vision(Pooling pooling = Pooling::token, Position position = Position::learned) {
  ModelSpec spec = preset(Family::vit);
  spec.layers = 3;
  spec.width = 32;
  spec.heads = 4;
  spec.kv_heads = 4;
  spec.ffn_width = 48;
  spec.image = {16, 8, 3, 7, pooling};
  spec.vocabulary = 7;
  spec.context = spec.image.tokens();
  spec.position = position;
  return spec;
}

StageOptions vision_stage(const ModelSpec& spec) {
  StageOptions options = test::small_stage(kB, spec.context, true);
  return options;
}

class Vision : public StageHarness {
 public:
  explicit Vision(const ModelSpec& spec) : Vision(spec, vision_stage(spec)) {}
  Vision(const ModelSpec& spec, const StageOptions& options)
      : StageHarness([=] { return make_architecture(spec, options); }, options, spec.vocabulary) {
    input.inverse_weights = 1.0F / static_cast<float>(kB);
    images(5);
  }
  /// Noise around a pattern of its class.
  void images(std::uint64_t seed) {
    const Batch& batch = stage->batch({});
    const Dim each = batch.patches.numel() / kB;
    for (Dim b = 0; b < kB; ++b) {
      const auto label = static_cast<std::int32_t>(b % 7);
      batch.labels.data<std::int32_t>()[2 * b] = label;
      batch.labels.data<std::int32_t>()[2 * b + 1] = label;
      batch.label_weights.data<float>()[b] = 1;
      batch.sample_position.data<std::int64_t>()[b] = b;
      for (Dim i = 0; i < each; ++i) {
        const auto place = static_cast<std::uint64_t>(b * each + i);
        const double noise = philox_uniform(philox(philox_counter(place, 1), seed).x[0]) - 0.5;
        batch.patches.data<float>()[b * each + i] =
            static_cast<float>(std::sin(0.1 * static_cast<double>(i * (label + 1))) + noise);
      }
    }
  }
  [[nodiscard]] double sum(ops::SumIndex index) const { return sums.view().data<float>()[index]; }
};

TEST(VisionTransformer, LossAtInitializationIsTheLogarithmOfTheClasses) {
  for (const Pooling pooling : {Pooling::token, Pooling::mean}) {
    for (const Position position : {Position::learned, Position::sincos2d, Position::none}) {
      Vision vision(small_vision(pooling, position));
      EXPECT_NEAR(vision.forward(Mode::evaluate), std::log(7.0), 0.2);
      EXPECT_EQ(vision.sum(ops::kSumTokens), kB);
    }
  }
}

TEST(VisionTransformer, HasTheParametersThatItsSpecCounts) {
  for (const Pooling pooling : {Pooling::token, Pooling::mean}) {
    const ModelSpec spec = small_vision(pooling);
    Vision vision(spec);
    std::int64_t sum = 0;
    for (const param::Param* param : vision.stage->params().trained().params()) {
      sum += param->global_shape.numel();
    }
    EXPECT_EQ(sum, parameter_count(spec));
  }
}

TEST(VisionTransformer, PublishedSizesAreCounted) {
  const auto count = [](Dim width, Dim heads) {
    ModelSpec spec = preset(Family::vit);
    spec.layers = 12;
    spec.width = width;
    spec.heads = spec.kv_heads = heads;
    spec.ffn_width = 4 * width;
    spec.image = {224, 16, 3, 1000, Pooling::token};
    spec.vocabulary = 1000;
    spec.context = 197;
    return spec;
  };
  EXPECT_EQ(parameter_count(count(192, 3)), 5717416);
  EXPECT_EQ(parameter_count(count(384, 6)), 22050664);
  EXPECT_EQ(parameter_count(count(768, 12)), 86567656);
  // 4.6 GMAC an image forward; the head reads one row.
  const double forward = flops_per_token(count(384, 6), 197, true) * 197 / 6;
  EXPECT_NEAR(forward, 4.6e9, 0.05e9);
}

TEST(VisionTransformer, OverfitsOneBatch) {
  for (const Pooling pooling : {Pooling::token, Pooling::mean}) {
    Vision vision(small_vision(pooling));
    for (int step = 0; step < 60; ++step) (void)vision.train_step(3e-3F);
    EXPECT_LT(vision.forward(Mode::evaluate), 0.05);
    EXPECT_EQ(vision.sum(ops::kSumCorrect), kB);
    EXPECT_EQ(vision.sum(ops::kSumCorrect5), kB);
  }
}

TEST(VisionTransformer, EveryPatchIsSeenAndEveryPosition) {
  Vision vision(small_vision());
  const double before = vision.forward(Mode::evaluate);
  const View patches = vision.stage->batch({}).patches;
  for (Dim n = 0; n < 4; ++n) {
    float& value = patches.data<float>()[n * patches.shape()[2]];
    const float kept = value;
    value += 5;
    EXPECT_NE(vision.forward(Mode::evaluate), before) << n;
    value = kept;
  }
}

TEST(VisionTransformer, SmoothingAndStochasticDepthActInTrainingAlone) {
  ModelSpec spec = small_vision();
  Vision plain(spec);
  spec.label_smoothing = 0.2;
  spec.drop_path = 0.3;
  Vision other(spec);

  EXPECT_EQ(plain.forward(Mode::evaluate), other.forward(Mode::evaluate));
  EXPECT_NE(plain.forward(Mode::train), other.forward(Mode::train));
}

/// The first layer of one is also its last: by the linear rule it skips nothing.
TEST(VisionTransformer, AConstantRuleSkipsSublayersOfTheFirstBlockToo) {
  ModelSpec spec = small_vision();
  spec.layers = 1;
  Vision plain(spec);
  spec.drop_path = 0.6;
  Vision linear(spec);
  spec.drop_path_rule = nn::DropPathRule::constant;
  Vision constant(spec);

  EXPECT_EQ(plain.forward(Mode::train), linear.forward(Mode::train));
  EXPECT_NE(plain.forward(Mode::train), constant.forward(Mode::train));
  EXPECT_EQ(plain.forward(Mode::evaluate), constant.forward(Mode::evaluate));
}

/// Deviation of the initial values of a parameter, by its name.
std::map<std::string, double> initial_deviations(const ModelSpec& spec) {
  Vision vision(spec);
  std::map<std::string, double> out;
  for (const param::Param* param : vision.stage->params().trained().params()) {
    const std::vector<double> values = test::to_doubles(param->master);
    double squares = 0;
    for (const double value : values) squares += value * value;
    out[param->name] = std::sqrt(squares / static_cast<double>(values.size()));
  }
  return out;
}

TEST(VisionTransformer, XavierGivesEveryMatrixTheDeviationOfItsSizes) {
  ModelSpec spec = small_vision();
  spec.init_std = 0.5;
  auto normal = initial_deviations(spec);
  spec.init = nn::InitRule::xavier;
  spec.position_std = 1;
  auto xavier = initial_deviations(spec);

  // The draws are the same, so that the ratios are those of the deviations.
  const std::vector<std::pair<std::string, double>> sides = {
      {"embedding.patch.weight", 192 + 32},
      {"blocks.0.attention.query.weight", 32 + 96},  // with keys and values
      {"blocks.1.attention.key.weight", 32 + 96},
      {"blocks.2.attention.value.weight", 32 + 96},
      {"blocks.0.attention.output.weight", 32 + 32},
      {"blocks.2.mlp.up.weight", 32 + 48},
      {"blocks.2.mlp.down.weight", 48 + 32},
      {"head.weight", 32 + 7}};
  for (const auto& [name, both] : sides) {
    ASSERT_GT(normal.at(name), 0.4) << name;
    EXPECT_NEAR(xavier.at(name) / normal.at(name), 2 * std::sqrt(2 / both), 1e-5) << name;
  }
  for (const std::string name : {"embedding.position.weight", "embedding.class_token"}) {
    EXPECT_NEAR(xavier.at(name) / normal.at(name), 2, 1e-5) << name;
  }
  EXPECT_EQ(xavier.at("blocks.0.attention.query.bias"), 0);
  EXPECT_EQ(xavier.at("blocks.0.norm1.weight"), 1);
}

/// Of all gradients after a training pass.
std::vector<float> gradients(const ModelSpec& spec, nn::Recompute recompute) {
  StageOptions options = vision_stage(spec);
  options.recompute = recompute;
  Vision vision(spec, options);
  (void)vision.forward(Mode::train);
  vision.backward();
  const auto all = vision.presence.gradients().sums().data.span<float>();
  return {all.begin(), all.end()};
}

TEST(VisionTransformer, RecomputationGivesTheSameGradients) {
  ModelSpec spec = small_vision(Pooling::mean);
  spec.dropout = 0.1;
  spec.drop_path = 0.4;
  const auto kept = gradients(spec, nn::Recompute::none);

  EXPECT_EQ(gradients(spec, nn::Recompute::selective), kept);
  EXPECT_EQ(gradients(spec, nn::Recompute::full), kept);
}

TEST(VisionTransformer, IdentityTellsSizesOfImagesApart) {
  ModelSpec a = small_vision();
  ModelSpec b = a;
  b.image.size = 32;
  b.context = b.image.tokens();
  EXPECT_EQ(differing_choices(identity(a), identity(b)).size(), 1U);
  EXPECT_EQ(differing_choices(identity(a), identity(b)).front().second, "image=32");
}

}  // namespace
}  // namespace hyperslab::model
