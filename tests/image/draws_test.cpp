// SPDX-License-Identifier: Apache-2.0
#include "draws.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace hyperslab::image {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};

template <class Draw>
Moments moments_of(Draw&& draw, int count = 40000) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < count; ++i) {
    Draws draws(17, "test", static_cast<std::uint64_t>(i));
    const double value = draw(draws);
    sum += value;
    squares += value * value;
  }
  const double mean = sum / count;
  return {mean, squares / count - mean * mean};
}

TEST(Draws, AreAFunctionOfSeedPurposeAndIndex) {
  const auto first = [](std::uint64_t seed, const char* purpose, std::uint64_t index) {
    return Draws(seed, purpose, index).uniform();
  };

  EXPECT_EQ(first(1, "crop", 5), first(1, "crop", 5));
  EXPECT_NE(first(1, "crop", 5), first(2, "crop", 5));
  EXPECT_NE(first(1, "crop", 5), first(1, "flip", 5));
  EXPECT_NE(first(1, "crop", 5), first(1, "crop", 6));
}

TEST(Draws, UniformHasItsMoments) {
  const Moments found = moments_of([](Draws& draws) { return draws.uniform(); });
  EXPECT_NEAR(found.mean, 0.5, 0.01);
  EXPECT_NEAR(found.variance, 1.0 / 12, 0.005);
}

TEST(Draws, NormalHasItsMoments) {
  const Moments found = moments_of([](Draws& draws) { return draws.normal(); });
  EXPECT_NEAR(found.mean, 0, 0.02);
  EXPECT_NEAR(found.variance, 1, 0.03);
}

TEST(Draws, BetaHasItsMoments) {
  for (const double alpha : {0.05, 0.2, 0.8, 1.0, 4.0}) {
    const Moments found = moments_of([=](Draws& draws) { return draws.beta(alpha); });
    EXPECT_NEAR(found.mean, 0.5, 0.012) << alpha;
    EXPECT_NEAR(found.variance, 1 / (4 * (2 * alpha + 1)), 0.006) << alpha;
  }
}

TEST(Draws, BetaOfATinyAlphaIsANumber) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const double value = Draws(3, "test", i).beta(1e-4);
    EXPECT_TRUE(value >= 0 && value <= 1) << value;
  }
}

TEST(Draws, BelowReachesEveryNumber) {
  std::array<int, 7> counts{};
  for (std::uint64_t i = 0; i < 7000; ++i) {
    ++counts[static_cast<std::size_t>(Draws(3, "test", i).below(7))];
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace hyperslab::image
