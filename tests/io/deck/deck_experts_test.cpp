// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_experts_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class ExpertsRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(ExpertsRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, ExpertsRules, testing::ValuesIn(broken_experts_rules()));

TEST(Experts, KeysAreReadAndSayWhichLayersHaveExperts) {
  const auto config =
      read(kValid, {"model.layers=7", "experts.count=8", "experts.active=4", "experts.shared=1",
                    "experts.every=2", "experts.first_dense=2", "experts.score=sigmoid",
                    "experts.normalize=false", "experts.scale=2.5", "experts.groups=4",
                    "experts.group_active=2", "experts.balance=batch", "experts.balance_samples=4",
                    "experts.balance_weight=0.5", "experts.bias_rate=0.001",
                    "experts.z_weight=0.25", "experts.in_turn=true"});
  const nn::ExpertsConfig& experts = config.model.experts;

  EXPECT_EQ(experts, (nn::ExpertsConfig{.count = 8,
                                        .active = 4,
                                        .width = config.model.ffn_width,
                                        .shared = 1,
                                        .every = 2,
                                        .first_dense = 2,
                                        .score = ops::RouterScore::sigmoid,
                                        .normalize = false,
                                        .scale = 2.5,
                                        .groups = 4,
                                        .active_groups = 2,
                                        .balance = nn::Balance::batch,
                                        .balance_samples = 4,
                                        .balance_weight = 0.5,
                                        .bias_rate = 0.001,
                                        .in_turn = true,
                                        .z_weight = 0.25}));
  EXPECT_EQ(read(to_yaml(config)).model.experts, experts);
  std::vector<Dim> layers;
  for (Dim layer = 0; layer < 7; ++layer) {
    if (experts.at(layer)) layers.push_back(layer);
  }
  EXPECT_EQ(layers, (std::vector<Dim>{3, 5}));
  EXPECT_EQ(experts.layers_of(7), 2);
  EXPECT_EQ(experts.losses(16).tokens, 64);
  EXPECT_EQ(nn::ExpertsConfig{.balance = nn::Balance::none}.losses(16).balance, 0);
}

TEST(Experts, ADeckWithoutThemHasNoWidthOfTheirOwn) {
  EXPECT_EQ(read(kValid).model.experts, nn::ExpertsConfig());
}

}  // namespace
}  // namespace hyperslab::deck::test
