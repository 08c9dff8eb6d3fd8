// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/made_up_machine.hpp"
#include "train/small_run.hpp"

namespace hyperslab::plan {
namespace {

class Searches : public testing::Test {
 protected:
  SearchResult search(int ranks) {
    machine_.ops["fp32"] = machine_.ops["bf16"];
    machine_.device = "cpu";
    const train::Config deck = test::small_config({}, 1);
    const deck::Surroundings surroundings{.ranks = ranks, .is_plan = true};
    return search_layouts(deck, ranks, {}, machine_, [&](const train::Config& config) {
      return deck::broken_rule(config, surroundings);
    });
  }
  MachineFile machine_ = test::made_up_machine();
};

TEST_F(Searches, EveryLayoutIsLegalAndOfAllRanksAndTheFastestComesFirst) {
  const SearchResult result = search(4);

  ASSERT_GT(result.found.size(), 3U);
  EXPECT_TRUE(std::ranges::is_sorted(result.found, {}, &FoundLayout::seconds));
  const deck::Surroundings surroundings{.ranks = 4, .is_plan = true};
  for (const FoundLayout& layout : result.found) {
    EXPECT_EQ(layout.config.parallel.ranks(), 4);
    EXPECT_EQ(deck::broken_rule(layout.config, surroundings), "") << settings_of(layout.config);
  }
  EXPECT_TRUE(std::ranges::any_of(
      result.found, [](const FoundLayout& layout) { return layout.config.parallel.pipeline > 1; }));
}

TEST_F(Searches, WhatIsIllegalIsLeftOutWithItsRule) {
  const SearchResult result = search(8);  // 4 heads, 3 blocks

  EXPECT_THAT(result.left_out, testing::Contains(testing::Key(testing::HasSubstr("tensor"))));
  for (const FoundLayout& layout : result.found) EXPECT_LE(layout.config.parallel.tensor, 4);
}

int left_out(const SearchResult& result) {
  int sum = 0;
  for (const auto& [reason, count] : result.left_out) sum += count;
  return sum;
}

TEST_F(Searches, EveryLayoutThatWasTriedIsFoundOrLeftOut) {
  for (const double share : {1e9, 0.7, 0.3}) {
    machine_.memory_bytes = 0;
    const SearchResult all = search(2);
    const auto largest = std::ranges::max_element(all.found, {}, &FoundLayout::memory_bytes);
    machine_.memory_bytes = share * static_cast<double>(largest->memory_bytes);

    const SearchResult result = search(2);

    EXPECT_EQ(static_cast<int>(result.found.size()) + left_out(result), result.tried) << share;
  }
}

TEST_F(Searches, WhatDoesNotFitIsLeftOut) {
  const SearchResult all = search(2);
  const auto smallest = std::ranges::min_element(all.found, {}, &FoundLayout::memory_bytes);
  machine_.memory_bytes = static_cast<double>(smallest->memory_bytes);

  const SearchResult few = search(2);

  EXPECT_LT(few.found.size(), all.found.size());
  EXPECT_GE(few.found.size(), 1U);
  for (const FoundLayout& layout : few.found) {
    EXPECT_LE(static_cast<double>(layout.memory_bytes), machine_.memory_bytes);
  }
  EXPECT_THAT(few.left_out,
              testing::Contains(testing::Key(testing::HasSubstr("more memory than a rank has"))));
}

}  // namespace
}  // namespace hyperslab::plan
