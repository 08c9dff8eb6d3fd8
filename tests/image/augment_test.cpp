// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/image/augment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace hyperslab::image {
namespace {

constexpr ImageSize kSource = {500, 375};

AugmentConfig everything() {
  AugmentConfig config;
  config.brightness = config.contrast = config.saturation = 0.4;
  config.policy = Policy::randaugment;
  config.policy_operations = 8;
  config.erase = 0.5;
  return config;
}

bool same(const ops::ImageBox& a, const ops::ImageBox& b) {
  return std::tie(a.left, a.top, a.width, a.height) == std::tie(b.left, b.top, b.width, b.height);
}
bool same(const ops::ImageOperation& a, const ops::ImageOperation& b) {
  return a.kind == b.kind && a.factor == b.factor && a.level == b.level &&
         std::ranges::equal(a.matrix, b.matrix);
}
bool same(const ops::ImageAugmentation& a, const ops::ImageAugmentation& b) {
  const auto plain = [](const ops::ImageAugmentation& of) {
    return std::tie(of.left, of.top, of.right, of.bottom, of.reads_beyond, of.shift_x, of.shift_y,
                    of.flip, of.operation_count, of.mix, of.weight);
  };
  bool equal = plain(a) == plain(b) && same(a.cut, b.cut) && same(a.erase, b.erase);
  for (int i = 0; i < ops::kMostImageOperations; ++i) {
    equal = equal && same(a.operations[i], b.operations[i]);
  }
  return equal;
}

TEST(DrawAugmentation, DependsOnSeedAndIndexAlone) {
  const AugmentConfig config = everything();
  for (std::uint64_t i = 0; i < 50; ++i) {
    const auto first = draw_augmentation(config, 1, i, kSource, kSource, 224);
    EXPECT_TRUE(same(first, draw_augmentation(config, 1, i, kSource, kSource, 224)));
    EXPECT_FALSE(same(first, draw_augmentation(config, 2, i, kSource, kSource, 224)));
    EXPECT_FALSE(same(first, draw_augmentation(config, 1, i + 1, kSource, kSource, 224)));
  }
}

TEST(DrawAugmentation, IsScaledToTheDecodedImage) {
  const AugmentConfig config = everything();
  const auto whole = draw_augmentation(config, 1, 4, kSource, kSource, 224);
  const auto half = draw_augmentation(config, 1, 4, kSource, {250, 188}, 224);

  EXPECT_DOUBLE_EQ(half.left, whole.left / 2);
  EXPECT_DOUBLE_EQ(half.right, whole.right / 2);
  EXPECT_DOUBLE_EQ(half.bottom, whole.bottom / 2);
  EXPECT_EQ(half.flip, whole.flip);
  EXPECT_EQ(half.operation_count, whole.operation_count);
}

TEST(DrawAugmentation, MirrorsAsOftenAsAsked) {
  AugmentConfig config;
  config.flip = 0.3;
  int mirrored = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    mirrored += draw_augmentation(config, 1, i, kSource, kSource, 224).flip;
  }
  EXPECT_NEAR(mirrored, 1500, 120);
}

TEST(DrawAugmentation, ShiftsAPaddedImageByUpToThePad) {
  AugmentConfig config;
  config.crop = Crop::padded;
  config.pad = 2;
  std::array<int, 5> counts{};
  for (std::uint64_t i = 0; i < 2500; ++i) {
    const auto found = draw_augmentation(config, 1, i, {32, 32}, {32, 32}, 32);
    EXPECT_EQ(found.right - found.left, 32);
    ++counts.at(static_cast<std::size_t>(found.shift_x) + 2);
  }
  for (const int count : counts) EXPECT_NEAR(count, 500, 90);
}

TEST(DrawAugmentation, ErasesBoxesOfTheirArea) {
  AugmentConfig config;
  config.erase = 0.25;
  int erased = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const ops::ImageBox box = draw_augmentation(config, 1, i, kSource, kSource, 64).erase;
    if (box.width == 0) continue;
    ++erased;
    const double share = box.width * box.height / 4096.0;
    EXPECT_GT(share, 0.015);
    EXPECT_LT(share, 0.345);
    EXPECT_LE(box.left + box.width, 64);
    EXPECT_LE(box.top + box.height, 64);
  }
  EXPECT_NEAR(erased, 1000, 100);
}

TEST(DrawAugmentation, ErasesTheAreaAndRatioOfTheDeck) {
  AugmentConfig config;
  config.erase = 1;
  config.erase_area = {0.2, 0.4};
  config.erase_ratio = {1, 1};
  for (std::uint64_t i = 0; i < 300; ++i) {
    const ops::ImageBox box = draw_augmentation(config, 1, i, kSource, kSource, 64).erase;
    EXPECT_EQ(box.width, box.height);
    EXPECT_GE(box.width, 28);  // 64 sqrt(0.2) is 28.6
    EXPECT_LE(box.width, 41);
  }
}

TEST(LeastDecodedSize, KeepsTheSizeInThePart) {
  const AugmentConfig config;
  const ImageSize source = {2000, 1500};
  for (std::uint64_t i = 0; i < 500; ++i) {
    const ImageSize least = least_decoded_size(config, 1, i, source, 224, true);
    const auto found = draw_augmentation(config, 1, i, source, least, 224);
    EXPECT_LE(least.width, source.width);
    EXPECT_LE(least.height, source.height);
    EXPECT_TRUE(found.right - found.left >= 223.999 || least.width == source.width);
    EXPECT_TRUE(found.bottom - found.top >= 223.999 || least.height == source.height);
  }
  EXPECT_EQ(least_decoded_size(config, 1, 0, {100, 80}, 224, true), (ImageSize{100, 80}));
}

TEST(LeastDecodedSize, OfValidationIsThatOfTheMiddle) {
  const AugmentConfig config;
  EXPECT_EQ(least_decoded_size(config, 1, 0, {2048, 1024}, 224, false), (ImageSize{512, 256}));
}

TEST(DrawAugmentation, TheScaleOfASmallerImageIsAnEighthAndNotTheRatioOfRoundedSizes) {
  AugmentConfig config;
  config.crop = Crop::center;
  config.validation_crop = 1;
  // 269 x 269 at 2/8 is 67.25 pixels wide, decoded to 68.
  const auto smaller = validation_augmentation(config, {269, 269}, {68, 68}, 64);
  EXPECT_DOUBLE_EQ(smaller.right - smaller.left, 67.25);
  const auto whole = validation_augmentation(config, {269, 269}, {269, 269}, 64);
  EXPECT_DOUBLE_EQ(whole.right - whole.left, 269);
  const auto tiny = validation_augmentation(config, {3, 3}, {3, 3}, 2);
  EXPECT_DOUBLE_EQ(tiny.right - tiny.left, 3);
}

TEST(ValidationAugmentation, IsTheMiddleAndNothingElse) {
  const auto found = validation_augmentation(everything(), {512, 256}, {512, 256}, 224);
  EXPECT_EQ(found.left, 144);
  EXPECT_EQ(found.right, 368);
  EXPECT_EQ(found.top, 16);
  EXPECT_EQ(found.bottom, 240);
  EXPECT_EQ(found.reads_beyond, 1);
  EXPECT_EQ(found.operation_count, 0);
  EXPECT_EQ(found.flip, 0);
}

}  // namespace
}  // namespace hyperslab::image
