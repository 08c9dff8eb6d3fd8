// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "parts.hpp"

namespace hyperslab::image {
namespace {

TEST(RandomPart, KeepsToAreaAndRatio) {
  const AugmentConfig config;
  const ImageSize source = {500, 375};
  double area = 0;
  constexpr int kCount = 4000;

  for (int i = 0; i < kCount; ++i) {
    const Part part = random_part(config, 7, static_cast<std::uint64_t>(i), source);
    const double share = part.width * part.height / (500.0 * 375.0);
    EXPECT_EQ(part.left, std::floor(part.left));
    EXPECT_GE(part.left, 0);
    EXPECT_GE(part.top, 0);
    EXPECT_LE(part.left + part.width, 500);
    EXPECT_LE(part.top + part.height, 375);
    EXPECT_GT(share, 0.079);
    EXPECT_GT(part.width / part.height, 0.74);
    EXPECT_LT(part.width / part.height, 1.35);
    area += share;
  }

  // torchvision's get_params gives 0.432 over 8000 draws: large parts seldom have room.
  EXPECT_NEAR(area / kCount, 0.432, 0.015);
}

TEST(RandomPart, FallsBackToTheMiddleOfALongImage) {
  AugmentConfig config;
  config.scale = {1, 1};

  const Part wide = random_part(config, 7, 0, {1000, 30});
  EXPECT_EQ(wide.height, 30);
  EXPECT_EQ(wide.width, 40);
  EXPECT_EQ(wide.left, 480);
  const Part high = random_part(config, 7, 0, {30, 1000});
  EXPECT_EQ(high.width, 30);
  EXPECT_EQ(high.height, 40);
  EXPECT_EQ(high.top, 480);
}

TEST(MiddlePart, IsThatOfResizeAndCenterCrop) {
  const AugmentConfig config;
  // 500 x 375 is resized to 341 x 256, of which columns 58 to 282 and rows 16 to 240 remain.
  const Part part = middle_part(config, {500, 375}, 224);
  EXPECT_DOUBLE_EQ(part.left, 58 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(part.width, 224 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(part.top, 16 * 375.0 / 256);
  EXPECT_DOUBLE_EQ(part.height, 224 * 375.0 / 256);
}

TEST(MiddlePart, OfWholeShareIsTheImage) {
  AugmentConfig config;
  config.validation_crop = 1;
  const Part part = middle_part(config, {64, 64}, 64);
  EXPECT_EQ(part.left, 0);
  EXPECT_EQ(part.top, 0);
  EXPECT_EQ(part.width, 64);
  EXPECT_EQ(part.height, 64);
}

}  // namespace
}  // namespace hyperslab::image
