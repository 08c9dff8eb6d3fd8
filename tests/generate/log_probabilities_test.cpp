// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/log_probabilities.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace hyperslab::test {
namespace {

using generate::log_probabilities;

// Shifted by 1000: exponentials of the logits themselves overflow.
const std::vector<float> kRowsOfLogits = {1000 + std::log(0.1F), 1000 + std::log(0.4F),
                                          1000 + std::log(0.3F), 1000 + std::log(0.2F)};
constexpr double kRounding = 1e-4;  // of float near 1000

TEST(LogProbabilities, AreThoseOfTheSoftmaxTheLikeliestFirst) {
  const auto found = log_probabilities(kRowsOfLogits, 3, 2);

  EXPECT_NEAR(found.log_probability, std::log(0.2), kRounding);
  ASSERT_EQ(found.top.size(), 2U);
  EXPECT_EQ(found.top[0].id, 1);
  EXPECT_NEAR(found.top[0].log_probability, std::log(0.4), kRounding);
  EXPECT_EQ(found.top[1].id, 2);
}

TEST(LogProbabilities, ATopTokenHasTheValueOfTheTokenItself) {
  const auto found = log_probabilities(kRowsOfLogits, 1, 1);

  EXPECT_EQ(found.log_probability, found.top.at(0).log_probability);
}

TEST(LogProbabilities, NamesAllTokensAtMostAndEqualOnesById) {
  const std::vector<float> equal = {0, 0, 0};

  EXPECT_TRUE(log_probabilities(equal, 0, 0).top.empty());
  const auto all = log_probabilities(equal, 2, 9).top;
  ASSERT_EQ(all.size(), 3U);
  for (std::int32_t id = 0; id < 3; ++id) EXPECT_EQ(all[static_cast<std::size_t>(id)].id, id);
}

}  // namespace
}  // namespace hyperslab::test
