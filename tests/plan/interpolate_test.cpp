// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/interpolate.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hyperslab::plan {
namespace {

using Point = Interpolation::Point;

double at(const Interpolation& values, std::vector<double> where) { return values.at(where); }

TEST(Interpolations, KnownPointsKeepTheirValues) {
  const std::vector<Point> points = {{{1, 2, 3}, -0.5}, {{4, 2, 1}, -1.5}, {{9, 9, 0}, -0.1}};
  const Interpolation values(points);

  for (const Point& point : points) EXPECT_EQ(values.at(point.at), point.value);
}

TEST(Interpolations, BetweenTwoPointsLiesAValueBetweenTheirs) {
  const Interpolation values({{{0, 0}, 1}, {{4, 4}, 3}});

  EXPECT_NEAR(at(values, {2, 2}), 2, 1e-9);  // by symmetry
  EXPECT_LT(at(values, {1, 1}), at(values, {3, 3}));
  EXPECT_GT(at(values, {1, 1}), 1);
}

TEST(Interpolations, AllPointsMakeThePlaneThatGoesOn) {
  std::vector<Point> points;
  for (double x = 0; x < 8; ++x) {
    for (double y = 0; y < 8; ++y) {
      if (x != 5 || y != 2) points.push_back({{x, y}, 0.5 * x - 0.25 * y});
    }
  }
  const Interpolation values(points);

  EXPECT_NEAR(at(values, {5, 2}), 2.0, 0.02);
  EXPECT_NEAR(at(values, {6.5, 3.5}), 2.375, 0.05);
}

TEST(Interpolations, BeyondAllPointsTheExtremesHold) {
  const Interpolation values({{{0, 0}, 1}, {{1, 1}, 2}, {{2, 2}, 3}});

  EXPECT_LE(at(values, {100, 100}), 3);
  EXPECT_GE(at(values, {-100, -100}), 1);
  EXPECT_EQ(at(Interpolation({{{7, 7}, 4}}), {0, 0}), 4);
}

}  // namespace
}  // namespace hyperslab::plan
