// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_mixture_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class MixtureRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(MixtureRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, MixtureRules, testing::ValuesIn(broken_mixture_rules()));

TEST(Mixture, KeysAreReadAndWritten) {
  const auto data =
      read(to_yaml(read(kValid, {"data.train=[a.bin, b/*.bin]", "data.weights=[0.7, 0.3, 1, 0]",
                                 "data.weight_steps=[5]"})))
          .data;

  EXPECT_EQ(data.weights, (std::vector<double>{0.7, 0.3, 1, 0}));
  EXPECT_EQ(data.weight_steps, (std::vector<std::int64_t>{5}));
}

TEST(Mixture, StepsWithoutWeightsAreRefused) {
  EXPECT_THAT(refusal(kValid, {"data.weight_steps=[5]"}), testing::HasSubstr("give data.weights"));
}

}  // namespace
}  // namespace hyperslab::deck::test
