// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/balance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "hyperslab/core/error.hpp"

namespace hyperslab::test {
namespace {

using pipeline::balance;
using testing::ElementsAre;

/// The most costly part of a cut.
double maximum(const std::vector<double>& costs, const std::vector<int>& sizes) {
  double most = 0;
  auto unit = costs.begin();
  for (const int size : sizes) {
    most = std::max(most, std::accumulate(unit, unit + size, 0.0));
    unit += size;
  }
  return most;
}

/// The least maximum over all cuts, by trying them all.
double least_maximum(const std::vector<double>& costs, int parts, std::size_t begin = 0) {
  double sum =
      std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), 0.0);
  if (parts == 1) return sum;
  double least = std::numeric_limits<double>::infinity();
  sum = 0;
  for (std::size_t end = begin + 1; end + static_cast<std::size_t>(parts) - 1 <= costs.size();
       ++end) {
    sum += costs[end - 1];
    least = std::min(least, std::max(sum, least_maximum(costs, parts - 1, end)));
  }
  return least;
}

TEST(Balance, CutsEqualUnitsEvenlyWithLighterFirstParts) {
  const std::vector<double> costs(10, 0.1);

  EXPECT_THAT(balance(costs, 4), ElementsAre(2, 2, 3, 3));
  EXPECT_THAT(balance(costs, 5), ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(balance(costs, 1), ElementsAre(10));
  EXPECT_THAT(balance(costs, 10), testing::Each(1));
}

TEST(Balance, GivesAHeavyHeadFewerLayers) {
  EXPECT_THAT(balance(std::vector<double>{0.1, 1, 1, 1, 1, 1, 1, 1, 1, 2.5}, 3),
              ElementsAre(4, 4, 2));
}

TEST(Balance, IsExact) {
  std::mt19937 random(7);  // NOLINT: the same costs in every run
  std::uniform_int_distribution<int> cost(0, 9);
  for (int n = 1; n <= 9; ++n) {
    for (int parts = 1; parts <= n; ++parts) {
      std::vector<double> costs(static_cast<std::size_t>(n));
      for (double& each : costs) each = cost(random);

      const std::vector<int> sizes = balance(costs, parts);

      ASSERT_EQ(sizes.size(), static_cast<std::size_t>(parts));
      EXPECT_GE(*std::ranges::min_element(sizes), 1);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), n);
      EXPECT_EQ(maximum(costs, sizes), least_maximum(costs, parts)) << n << " in " << parts;
    }
  }
}

TEST(Balance, RefusesMorePartsThanUnits) {
  EXPECT_THROW((void)balance(std::vector<double>{1, 1}, 3), Error);
  EXPECT_THROW((void)balance(std::vector<double>{1, 1}, 0), Error);
}

}  // namespace
}  // namespace hyperslab::test
