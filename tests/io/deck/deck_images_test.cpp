// SPDX-License-Identifier: Apache-2.0
// Decks of vision transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "broken_image_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class ImageRules : public testing::TestWithParam<BrokenImageRule> {};

TEST_P(ImageRules, ABrokenOneSaysWhatToDo) {
  const auto& [key, override, of_images, message] = GetParam();
  std::vector<std::string> overrides = {override};
  if (key == "train.microbatch") overrides.emplace_back("train.microbatch=1");
  if (key == "augment.repeats") overrides.emplace_back("augment.mixup=0.2");
  if (key == "model.scale_residual_init") overrides.push_back(key + "=true");
  if (key == "model.position_std" && of_images) {
    overrides.insert(overrides.end(), {"model.position=sincos2d", "model.pooling=mean"});
  }
  if (key == "model.width") {
    overrides.insert(overrides.end(), {"model.position=sincos2d", "model.heads=1"});
  }

  EXPECT_THAT(
      refusal(of_images ? kImages : kValid, overrides),
      testing::HasSubstr(override.substr(0, override.find('=')) == key ? override + ": " + message
                                                                       : message));
}

INSTANTIATE_TEST_SUITE_P(Table, ImageRules, testing::ValuesIn(broken_image_rules()),
                         [](const auto& test) {
                           std::string name = test.param.key + std::to_string(test.index);
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST(Images, TokensAndClassesStandForContextAndVocabulary) {
  const auto token = read(kImages).model;
  const auto mean = read(kImages, {"model.pooling=mean"}).model;

  EXPECT_EQ(token.context, 17);
  EXPECT_EQ(token.vocabulary, 10);
  EXPECT_EQ(mean.context, 16);
  EXPECT_EQ(token.image.patch_values(), 192);
  EXPECT_EQ(token.norm_eps, 1e-6);
  EXPECT_FALSE(token.tie_embeddings);
}

TEST(Images, PositionsMayBeginWiderThanMatrices) {
  EXPECT_EQ(read(kImages, {"model.position_std=1"}).model.position_std, 1);
  EXPECT_EQ(read(kImages).model.position_std, 0);
}

TEST(Images, AResolvedDeckTakesOtherSizes) {
  const std::string resolved = to_yaml(read(kImages));

  const auto larger = read(resolved, {"model.image=48", "model.classes=3"}).model;

  EXPECT_EQ(larger.context, 37);
  EXPECT_EQ(larger.vocabulary, 3);
  EXPECT_THAT(refusal(resolved, {"model.image=48", "model.context=17"}),
              testing::HasSubstr("model.context"));
}

TEST(Images, EveryKeyIsRead) {
  const auto config = read(kImages, {"model.channels=1",
                                     "model.pooling=mean",
                                     "model.drop_path=0.125",
                                     "model.drop_path_rule=constant",
                                     "model.init=xavier",
                                     "model.init_std=0.5",
                                     "model.position_std=0",
                                     "model.label_smoothing=0.25",
                                     "model.position=sincos2d",
                                     "data.broken_images=skip",
                                     "data.decode=cpu",
                                     "data.threads=3",
                                     "augment.crop=padded",
                                     "augment.scale=[0.25, 0.5]",
                                     "augment.ratio=[0.5, 2]",
                                     "augment.pad=2",
                                     "augment.interpolation=bicubic",
                                     "augment.validation_crop=0.9",
                                     "augment.flip=0.25",
                                     "augment.policy=autoaugment-imagenet",
                                     "augment.policy_operations=3",
                                     "augment.policy_magnitude=10",
                                     "augment.policy_fill=128",
                                     "augment.brightness=0.125",
                                     "augment.contrast=0.375",
                                     "augment.saturation=0.625",
                                     "augment.mixup=0.75",
                                     "augment.cutmix=1",
                                     "augment.mix=0.875",
                                     "augment.mix_mode=batch",
                                     "augment.repeats=3",
                                     "model.unbiased_qkv=true",
                                     "augment.mix_switch=0.0625",
                                     "augment.erase=0.5",
                                     "augment.erase_area=[0.1, 0.4]",
                                     "augment.erase_ratio=[0.5, 2]",
                                     "optimizer.decay_norms_and_biases=true",
                                     "augment.mean=[0.5, 0.25, 0.125]",
                                     "augment.deviation=[1, 2, 3]"});

  EXPECT_EQ(config.model.image, (model::ImageSpec{32, 8, 1, 10, model::Pooling::mean}));
  EXPECT_EQ(config.model.position, model::Position::sincos2d);
  EXPECT_EQ(config.model.drop_path, 0.125);
  EXPECT_EQ(config.model.drop_path_rule, nn::DropPathRule::constant);
  EXPECT_EQ(config.model.matrix_init().rule, nn::InitRule::xavier);
  EXPECT_EQ(config.model.matrix_init().std, 0.5F);
  EXPECT_TRUE(config.optimizer.decay_norms_and_biases);
  EXPECT_EQ(config.model.label_smoothing, 0.25);
  EXPECT_EQ(config.data.broken_images, io::BrokenImages::skip);
  EXPECT_EQ(config.data.decode, io::DecodeOn::cpu);
  EXPECT_EQ(config.data.threads, 3);
  EXPECT_TRUE(config.model.bias);
  EXPECT_FALSE(config.model.has_qkv_bias());
  const image::AugmentConfig expected = {3,
                                         image::Crop::padded,
                                         {0.25, 0.5},
                                         {0.5, 2},
                                         2,
                                         image::Interpolation::bicubic,
                                         0.9,
                                         0.25,
                                         image::Policy::autoaugment_imagenet,
                                         3,
                                         10,
                                         128,
                                         0.125,
                                         0.375,
                                         0.625,
                                         0.75,
                                         1,
                                         0.875,
                                         image::MixMode::batch,
                                         0.0625,
                                         0.5,
                                         {0.1, 0.4},
                                         {0.5, 2},
                                         {0.5, 0.25, 0.125},
                                         {1, 2, 3}};
  EXPECT_EQ(config.augment, expected);
}

TEST(Images, NearestMicrobatchOfPairsCutsTheGlobalBatch) {
  const std::string refused =
      refusal(kImages, {"augment.mixup=0.2", "train.global_batch=18", "train.microbatch=9"});

  EXPECT_THAT(refused, testing::HasSubstr("a microbatch of 9 cuts pairs; nearest: 6 or 18"));
}

TEST(Images, AResolvedDeckReadsBackAsItself) {
  const auto config = read(kImages, {"augment.mixup=0.2", "data.threads=2"});

  EXPECT_EQ(read(to_yaml(config)), config);
}

TEST(Images, WhatOnlyImagesNeedIsNotAskedOfText) {
  const std::string missing =
      refusal(with(kImages, "  image: 32\n  patch: 8\n  classes: 10\n", ""));

  EXPECT_THAT(missing, testing::HasSubstr("model.image: is missing and has no default"));
  EXPECT_THAT(missing, testing::HasSubstr("model.patch: is missing and has no default"));
  EXPECT_THAT(missing, testing::HasSubstr("model.classes: is missing and has no default"));
  EXPECT_THAT(missing, testing::Not(testing::HasSubstr("model.vocabulary")));
}

}  // namespace
}  // namespace hyperslab::deck::test
