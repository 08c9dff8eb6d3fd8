// SPDX-License-Identifier: Apache-2.0
// Keys and values that earlier programs wrote under other names.
#include <gtest/gtest.h>

#include <string>

#include "decks.hpp"
#include "hyperslab/train/renamed_keys.hpp"

namespace hyperslab::deck::test {
namespace {

TEST(Renamed, KeysAndValuesOfEarlierProgramsAreReadAsThoseOfToday) {
  const auto config = read(kValid + "spikes: {policy: walk_back, max_walk_backs: 3}\n");

  EXPECT_EQ(config.spikes.policy, train::SpikePolicy::roll_back);
  EXPECT_EQ(config.spikes.max_roll_backs, 3);
  EXPECT_EQ(config, read(kValid + "spikes: {policy: roll_back, max_roll_backs: 3}\n"));
}

TEST(Renamed, OverridesTakeThemToo) {
  const auto config = read(kValid + "spikes: {max_roll_backs: 3}\n",
                           {"spikes.policy=walk_back", "spikes.max_walk_backs=4"});

  EXPECT_EQ(config.spikes.policy, train::SpikePolicy::roll_back);
  EXPECT_EQ(config.spikes.max_roll_backs, 4);
}

TEST(Renamed, WrittenDecksHaveTheNamesOfToday) {
  const std::string text =
      to_yaml(read(kValid + "spikes: {policy: walk_back, max_walk_backs: 3}\n"));

  EXPECT_NE(text.find("policy: roll_back"), std::string::npos);
  EXPECT_NE(text.find("max_roll_backs: 3"), std::string::npos);
  EXPECT_EQ(text.find("walk_back"), std::string::npos);
}

TEST(Renamed, AKeyUnderBothNamesIsGivenTwice) {
  const std::string message =
      refusal(kValid + "spikes:\n  max_roll_backs: 3\n  max_walk_backs: 4\n");

  EXPECT_NE(message.find("spikes.max_roll_backs"), std::string::npos);
  EXPECT_NE(message.find("given twice"), std::string::npos);
  EXPECT_NE(message.find("(also as spikes.max_walk_backs)"), std::string::npos) << message;
}

TEST(Renamed, OtherNamesStay) {
  EXPECT_EQ(train::current_key("spikes.window"), "spikes.window");
  EXPECT_EQ(train::current_value("spikes.policy", "skip"), "skip");
  EXPECT_EQ(train::current_value("run.name", "walk_back"), "walk_back");
}

}  // namespace
}  // namespace hyperslab::deck::test
