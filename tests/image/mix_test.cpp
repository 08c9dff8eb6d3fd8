// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "hyperslab/image/augment.hpp"

namespace hyperslab::image {
namespace {

constexpr std::uint64_t kBatch = 12;

Mixing drawn(const AugmentConfig& config, std::uint64_t index) {
  return draw_mixing(config, 5, index, kBatch, 64);
}

AugmentConfig mixing(double mixup, double cutmix) {
  AugmentConfig config;
  config.mixup = mixup;
  config.cutmix = cutmix;
  return config;
}

AugmentConfig by_batch(AugmentConfig config) {
  config.mix_mode = MixMode::batch;
  return config;
}

void expect_equal_but_for_the_partner(const Mixing& a, const Mixing& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_EQ(a.cut.left, b.cut.left);
  EXPECT_EQ(a.cut.top, b.cut.top);
  EXPECT_EQ(a.cut.width, b.cut.width);
  EXPECT_EQ(a.cut.height, b.cut.height);
}

TEST(Mixing, DoesNothingUnlessAsked) {
  EXPECT_EQ(drawn(AugmentConfig(), 3).weight, 1);
  EXPECT_EQ(drawn(AugmentConfig(), 3).kind, ops::ImageMix::none);
  EXPECT_EQ(drawn(by_batch(AugmentConfig()), 3).kind, ops::ImageMix::none);
}

TEST(Mixing, TheTwoOfAPairAreMixedWithEachOtherByOneDraw) {
  for (std::uint64_t even = 0; even < 200; even += 2) {
    const Mixing a = drawn(mixing(0.8, 1), even);
    const Mixing b = drawn(mixing(0.8, 1), even + 1);

    EXPECT_EQ(a.partner, even + 1);
    EXPECT_EQ(b.partner, even);
    expect_equal_but_for_the_partner(a, b);
    EXPECT_NE(a.weight, drawn(mixing(0.8, 1), even + 2).weight);
  }
}

TEST(Mixing, ABatchIsMixedByOneDrawAndAPermutation) {
  std::set<std::vector<std::uint64_t>> permutations;
  for (std::uint64_t first = 0; first < 20 * kBatch; first += kBatch) {
    const Mixing one = drawn(by_batch(mixing(0.8, 1)), first);
    std::vector<std::uint64_t> partners;
    for (std::uint64_t i = 0; i < kBatch; ++i) {
      const Mixing other = drawn(by_batch(mixing(0.8, 1)), first + i);
      expect_equal_but_for_the_partner(one, other);
      partners.push_back(other.partner - first);
    }
    permutations.insert(partners);
    std::ranges::sort(partners);
    for (std::uint64_t i = 0; i < kBatch; ++i) EXPECT_EQ(partners[i], i);
    EXPECT_NE(one.weight, drawn(by_batch(mixing(0.8, 1)), first + kBatch).weight);
  }
  EXPECT_EQ(permutations.size(), 20U);
}

TEST(Mixing, WeightsOfMixupAreBeta) {
  for (const bool batches : {false, true}) {
    const AugmentConfig config = batches ? by_batch(mixing(0.2, 0)) : mixing(0.2, 0);
    double sum = 0;
    double squares = 0;
    constexpr std::uint64_t kCount = 20000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const Mixing found = drawn(config, (batches ? kBatch : 2) * i);
      EXPECT_EQ(found.kind, ops::ImageMix::mixup);
      sum += found.weight;
      squares += found.weight * found.weight;
    }
    const double mean = sum / kCount;
    EXPECT_NEAR(mean, 0.5, 0.015);
    EXPECT_NEAR(squares / kCount - mean * mean, 1 / (4 * 1.4), 0.01);
  }
}

TEST(Mixing, WeightOfCutmixIsTheAreaThatStays) {
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const Mixing found = drawn(mixing(0, 1), 2 * i);
    const ops::ImageBox& cut = found.cut;
    EXPECT_EQ(found.kind, ops::ImageMix::cutmix);
    EXPECT_GE(cut.left, 0);
    EXPECT_GE(cut.top, 0);
    EXPECT_LE(cut.left + cut.width, 64);
    EXPECT_LE(cut.top + cut.height, 64);
    EXPECT_FLOAT_EQ(found.weight,
                    1.0F - static_cast<float>(cut.width * cut.height) / (64.0F * 64.0F));
  }
}

TEST(Mixing, ChoosesByTheProbabilities) {
  AugmentConfig config = mixing(0.8, 1);
  config.mix = 0.75;
  config.mix_switch = 0.25;
  int mixed = 0;
  int cut = 0;
  constexpr int kCount = 8000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const Mixing found = drawn(config, 2 * i);
    mixed += found.kind == ops::ImageMix::none ? 0 : 1;
    cut += found.kind == ops::ImageMix::cutmix ? 1 : 0;
  }
  EXPECT_NEAR(mixed, 0.75 * kCount, 0.03 * kCount);
  EXPECT_NEAR(cut, 0.25 * mixed, 0.03 * kCount);
}

}  // namespace
}  // namespace hyperslab::image
