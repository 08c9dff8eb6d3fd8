// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_rope_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class RopeRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(RopeRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, RopeRules, testing::ValuesIn(broken_rope_rules()));

TEST(Rope, KeysAreRead) {
  const auto model =
      read(kValid,
           {"model.head_width=8", "model.qkv_bias=true", "model.rotary_fraction=0.5",
            "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32",
            "model.rope_beta_fast=16", "model.rope_beta_slow=2", "model.rope_attention_factor=1.5"})
          .model;

  EXPECT_EQ(model.head_width(), 8);
  EXPECT_EQ(model.query_width(), 32);
  EXPECT_TRUE(model.has_qkv_bias());
  EXPECT_EQ(model.rope, (model::RopeSpec{.fraction = 0.5,
                                         .scaling = model::RopeScaling::yarn,
                                         .factor = 4,
                                         .original_context = 32,
                                         .beta_fast = 16,
                                         .beta_slow = 2,
                                         .attention_factor = 1.5}));
  EXPECT_EQ(read(to_yaml(read(kValid, {"model.head_width=8"}))).model.head_width(), 8);
}

TEST(Rope, AHeadWidthOfItsOwnNeedsNoDivisor) {
  EXPECT_EQ(read(kValid, {"model.heads=5", "model.head_width=8"}).model.query_width(), 40);
}

}  // namespace
}  // namespace hyperslab::deck::test
