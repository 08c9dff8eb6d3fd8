// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_score_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class ScoreRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(ScoreRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, ScoreRules, testing::ValuesIn(broken_score_rules()));

TEST(Scores, KeysAreReadAndSayWhichLayersHaveAWindow) {
  const auto model = read(kValid, {"model.layers=7", "model.window=4", "model.window_full_every=3",
                                   "model.window_first_layer=1", "model.rope_local_theta=100",
                                   "model.attention_scale=0.5", "model.attention_softcap=50",
                                   "model.attention_sinks=true", "model.logit_softcap=30"})
                         .model;

  EXPECT_EQ(model.scores, (model::AttentionSpec{4, 3, 1, 0.5, 50, true}));
  EXPECT_EQ(model.rope_local_theta, 100);
  EXPECT_EQ(model.logit_softcap, 30);
  std::vector<Dim> windows;
  for (Dim layer = 0; layer < 7; ++layer) windows.push_back(model.scores.window_of(layer));
  EXPECT_EQ(windows, (std::vector<Dim>{0, 4, 0, 4, 4, 0, 4}));
}

}  // namespace
}  // namespace hyperslab::deck::test
