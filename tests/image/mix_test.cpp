// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "hyperslab/image/augment.hpp"

namespace hyperslab::image {
namespace {

struct Pair {
  ops::ImageAugmentation even, odd;
  float weight = 1;
};

Pair drawn(const AugmentConfig& config, std::uint64_t pair) {
  Pair out;
  out.weight = mix_pair(config, 5, 2 * pair, 64, out.even, out.odd);
  return out;
}

AugmentConfig mixing(double mixup, double cutmix) {
  AugmentConfig config;
  config.mixup = mixup;
  config.cutmix = cutmix;
  return config;
}

TEST(MixPair, DoesNothingUnlessAsked) {
  const Pair pair = drawn(AugmentConfig(), 3);
  EXPECT_EQ(pair.weight, 1);
  EXPECT_EQ(pair.even.mix, ops::ImageMix::none);
}

TEST(MixPair, WeightsOfMixupAreBeta) {
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const Pair pair = drawn(mixing(0.2, 0), static_cast<std::uint64_t>(i));
    EXPECT_EQ(pair.even.mix, ops::ImageMix::mixup);
    EXPECT_EQ(pair.odd.mix, ops::ImageMix::mixup);
    EXPECT_EQ(pair.even.weight, pair.weight);
    EXPECT_EQ(pair.odd.weight, pair.weight);
    sum += pair.weight;
    squares += pair.weight * pair.weight;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.5, 0.015);
  EXPECT_NEAR(squares / kCount - mean * mean, 1 / (4 * 1.4), 0.01);
}

TEST(MixPair, WeightOfCutmixIsTheAreaThatStays) {
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const Pair pair = drawn(mixing(0, 1), i);
    const ops::ImageBox& cut = pair.even.cut;
    EXPECT_EQ(pair.even.mix, ops::ImageMix::cutmix);
    EXPECT_GE(cut.left, 0);
    EXPECT_GE(cut.top, 0);
    EXPECT_LE(cut.left + cut.width, 64);
    EXPECT_LE(cut.top + cut.height, 64);
    EXPECT_EQ(cut.left, pair.odd.cut.left);
    EXPECT_EQ(cut.height, pair.odd.cut.height);
    EXPECT_FLOAT_EQ(pair.weight,
                    1.0F - static_cast<float>(cut.width * cut.height) / (64.0F * 64.0F));
  }
}

TEST(MixPair, ChoosesByTheProbabilities) {
  AugmentConfig config = mixing(0.8, 1);
  config.mix = 0.75;
  config.mix_switch = 0.25;
  int mixed = 0;
  int cut = 0;
  constexpr int kCount = 8000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const Pair pair = drawn(config, i);
    mixed += pair.even.mix == ops::ImageMix::none ? 0 : 1;
    cut += pair.even.mix == ops::ImageMix::cutmix ? 1 : 0;
  }
  EXPECT_NEAR(mixed, 0.75 * kCount, 0.03 * kCount);
  EXPECT_NEAR(cut, 0.25 * mixed, 0.03 * kCount);
}

}  // namespace
}  // namespace hyperslab::image
