// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/plan/predict.hpp"
#include "plan/made_up_machine.hpp"
#include "train/small_run.hpp"

namespace hyperslab::plan {
namespace {

class Searches : public testing::Test {
 protected:
  SearchResult search(int ranks, const std::vector<std::string>& overrides = {}) {
    machine_.ops["fp32"] = machine_.ops["bf16"];
    machine_.device = "cpu";
    const train::Config deck = test::small_config(overrides, 1);
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

TEST_F(Searches, DataRanksMayHoldOtherExperts) {
  const SearchResult result = search(4, {"model.bias=false", "experts.count=6"});

  std::set<int> experts;
  for (const FoundLayout& layout : result.found) {
    const mesh::ParallelConfig& parallel = layout.config.parallel;
    experts.insert(parallel.expert);
    if (parallel.expert > 1) {
      EXPECT_THAT(settings_of(layout.config), testing::HasSubstr(" expert=2"));
    }
  }
  EXPECT_THAT(experts, testing::ElementsAre(1, 2)) << "4 ranks do not share 6 experts";
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

/// Searches of a deck of GPUs that have so much for their arenas.
class SearchesForMemory : public testing::Test {
 protected:
  static constexpr double kLibraries = 3.0 * (1 << 30);  // that the search leaves to CUDA and NCCL

  SearchesForMemory() {
    machine_.ops["fp32"] = machine_.ops["bf16"];
    machine_.host_bytes_per_second = 50e9;
    options_.device = Device::cuda;
  }
  SearchResult search(const std::vector<std::string>& overrides, int ranks, std::size_t room) {
    machine_.memory_bytes = static_cast<double>(room) + kLibraries;
    const train::Config deck = test::small_config(overrides, 0);
    SearchResult result =
        search_layouts(deck, ranks, options_, machine_, [&](const train::Config& config) {
          return deck::broken_rule(config, surroundings(ranks));
        });
    for (const FoundLayout& layout : result.found) expect_usable(layout, ranks, room);
    return result;
  }
  static deck::Surroundings surroundings(int ranks) {
    return {.ranks = ranks, .has_cuda_device = true, .has_cuda_build = true, .is_plan = true};
  }
  /// That the layout is a deck, that it fits, and that it takes what the search says.
  void expect_usable(const FoundLayout& layout, int ranks, std::size_t room) {
    const std::string text = deck::to_yaml(layout.config);
    EXPECT_EQ(deck::read_deck(text, "found.yaml", {}, surroundings(ranks)), layout.config);
    EXPECT_EQ(fullest(layout.config), layout.memory_bytes) << settings_of(layout.config);
    EXPECT_LE(layout.memory_bytes, room) << settings_of(layout.config);
    EXPECT_NEAR(seconds_of(layout.config), layout.seconds, 1e-9) << settings_of(layout.config);
  }
  [[nodiscard]] std::vector<Plan> plans_of(const train::Config& config) const {
    std::vector<Plan> plans;
    for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
      plans.push_back(make_plan(config, options_, mesh::first_rank_of(config.parallel, stage), 2));
    }
    return plans;
  }
  [[nodiscard]] std::size_t fullest(const train::Config& config) const {
    std::size_t most = 0;
    for (const Plan& plan : plans_of(config)) most = std::max(most, plan.memory.total());
    return most;
  }
  [[nodiscard]] double seconds_of(const train::Config& config) const {
    return predict(config, plans_of(config), machine_, true).step.seconds;
  }
  /// Memory with the deck as it is.
  [[nodiscard]] std::size_t planned(std::vector<std::string> overrides,
                                    const std::vector<std::string>& more = {}) const {
    overrides.insert(overrides.end(), more.begin(), more.end());
    return fullest(test::small_config(overrides, 0));
  }
  MachineFile machine_ = test::made_up_machine();
  train::TrainerOptions options_;
};

const std::vector<std::string> kDeep = {"model.layers=8", "model.width=256", "model.context=512",
                                        "train.global_batch=4"};

TEST_F(SearchesForMemory, LongSamplesAreSharedAndShortOnesAreNot) {
  constexpr std::size_t kMuch = std::size_t{1} << 36;
  const auto shares = [](const FoundLayout& layout) { return layout.config.parallel.context > 1; };
  const std::vector<std::string> deck = {"model.layers=2", "train.global_batch=2"};
  std::vector<std::string> longer = deck;
  longer.emplace_back("model.context=8192");

  const SearchResult result = search(longer, 2, kMuch);

  const auto shared = std::ranges::find_if(result.found, shares);
  ASSERT_NE(shared, result.found.end());
  EXPECT_THAT(settings_of(shared->config), testing::HasSubstr(" context=2 zero="));
  EXPECT_TRUE(std::ranges::none_of(search(deck, 2, kMuch).found, shares));
}

TEST_F(SearchesForMemory, BlocksThatFitKeepTheirActivations) {
  const std::vector<std::string> one = {"train.microbatch=1"};
  const std::size_t none = planned(kDeep, one);
  const std::size_t full = planned(kDeep, {one[0], "memory.recompute=full"});

  const SearchResult result = search(kDeep, 1, full + 3 * (none - full) / 4);

  ASSERT_FALSE(result.found.empty());
  const FoundLayout& fastest = result.found.front();
  EXPECT_EQ(fastest.config.memory.recompute, nn::Recompute::full);
  EXPECT_GT(fastest.config.memory.recompute_layers, 0);
  EXPECT_THAT(settings_of(fastest.config), testing::HasSubstr(" recompute=full recompute_layers="));
  for (const auto& again : {nn::Recompute::selective, nn::Recompute::full}) {
    train::Config other = fastest.config;
    other.memory.recompute = again;
    other.memory.recompute_layers = 0;
    if (fullest(other) > machine_.memory_bytes - kLibraries) continue;
    EXPECT_LT(fastest.seconds, seconds_of(other)) << name_of(again);
  }
  train::Config fewer = fastest.config;
  if (--fewer.memory.recompute_layers == 0) fewer.memory.recompute = nn::Recompute::none;
  EXPECT_GT(static_cast<double>(fullest(fewer)), machine_.memory_bytes - kLibraries);
}

TEST_F(SearchesForMemory, ADecksOwnBlocksAreNotKept) {
  std::vector<std::string> deck = kDeep;
  deck.insert(deck.end(), {"memory.recompute=full", "memory.recompute_layers=5"});

  const SearchResult result = search(deck, 1, std::size_t{1} << 40);

  ASSERT_FALSE(result.found.empty());
  EXPECT_THAT(result.left_out,
              testing::Not(testing::Contains(testing::Key(testing::HasSubstr("memory.")))));
  for (const FoundLayout& layout : result.found) {
    EXPECT_EQ(layout.config.memory, train::MemoryConfig()) << settings_of(layout.config);
  }
}

const std::vector<std::string> kWide = {"model.width=1024", "model.layers=8",
                                        "train.global_batch=8"};

TEST_F(SearchesForMemory, StateGoesToTheHostWhereNothingElseFits) {
  const std::vector<std::string> least = {"train.microbatch=1", "memory.recompute=full"};
  std::vector<std::string> on_host = least;
  on_host.emplace_back("memory.optimizer=host");
  const std::size_t room = planned(kWide, on_host) + (300 << 20);
  ASSERT_LT(room, planned(kWide, least));

  const SearchResult result = search(kWide, 1, room);

  ASSERT_FALSE(result.found.empty());
  for (const FoundLayout& layout : result.found) {
    EXPECT_EQ(layout.config.memory.optimizer, Home::host) << settings_of(layout.config);
    EXPECT_GT(layout.host_bytes, std::size_t{1} << 30);
  }
  EXPECT_THAT(settings_of(result.found.front().config),
              testing::HasSubstr(" memory.optimizer=host resident_gib=0.25"));
  EXPECT_TRUE(search(kWide, 1, planned(kWide, on_host) - 1).found.empty());
}

TEST_F(SearchesForMemory, StateStaysWhereItFits) {
  const SearchResult result = search(kWide, 1, planned(kWide, {"train.microbatch=1"}));

  ASSERT_FALSE(result.found.empty());
  EXPECT_EQ(result.found.front().config.memory.optimizer, Home::device);
}

/// Muon, a machine file without the link's rate, and CPU ranks.
TEST_F(SearchesForMemory, NoStateGoesToAHostThatCannotHaveIt) {
  std::vector<std::string> least = {"train.microbatch=1", "memory.recompute=full",
                                    "memory.optimizer=host"};
  const std::size_t room = planned(kWide, least) + (100 << 20);
  std::vector<std::string> muon = kWide;
  muon.emplace_back("optimizer.name=muon");
  EXPECT_FALSE(search(kWide, 1, room).found.empty());

  const SearchResult of_muon = search(muon, 1, room);
  machine_.host_bytes_per_second = 0;
  const SearchResult without_rate = search(kWide, 1, room);
  machine_.host_bytes_per_second = 50e9;
  options_.device = Device::cpu;
  const SearchResult of_cpu = search(kWide, 1, room);

  const std::map<std::string, int> memory_alone = {{"needs more memory than a rank has", 3}};
  for (const SearchResult* result : {&of_muon, &without_rate, &of_cpu}) {
    EXPECT_TRUE(result->found.empty());
    EXPECT_EQ(result->left_out, memory_alone);
  }
}

const std::vector<std::string> kLong = {"model.family=llama",     "model.context=65536",
                                        "model.width=256",        "model.ffn_width=4096",
                                        "model.vocabulary=40000", "train.global_batch=1",
                                        "precision.compute=bf16", "train.microbatch=1"};

TEST_F(SearchesForMemory, LossAndFeedForwardGoInPiecesWhereNothingElseFits) {
  options_.compute = DType::bf16;
  const std::vector<std::string> least = {"train.microbatch=1", "memory.recompute=full"};
  const std::vector<std::string> wide = {least[0], least[1], "memory.mlp_rows=4096"};
  const std::vector<std::string> both = {least[0], least[1], wide[2], "memory.loss_rows=1024"};
  ASSERT_LT(planned(kLong, wide), planned(kLong, least));
  ASSERT_LT(planned(kLong, both), planned(kLong, wide));
  const auto only = [&](std::size_t room) {
    const SearchResult result = search(kLong, 1, room);
    EXPECT_EQ(result.found.size(), 1) << room;
    return result.found.empty() ? train::MemoryConfig() : result.found[0].config.memory;
  };

  EXPECT_EQ(only(planned(kLong, least)).mlp_rows, 0);
  EXPECT_EQ(only(planned(kLong, wide)).mlp_rows, 4096);
  EXPECT_EQ(only(planned(kLong, wide)).loss_rows, 0);
  EXPECT_EQ(only(planned(kLong, both)).mlp_rows, 4096);
  EXPECT_EQ(only(planned(kLong, both)).loss_rows, 1024);
  machine_.host_bytes_per_second = 0;
  EXPECT_TRUE(search(kLong, 1, planned(kLong, both) - 1).found.empty());
}

TEST_F(SearchesForMemory, ManyRanksAreCountedToo) {
  for (const std::size_t part : {1, 2, 3}) {
    const std::size_t room = part * planned(kDeep, {"train.microbatch=1"}) / 3;

    const SearchResult result = search(kDeep, 4, room);

    EXPECT_FALSE(result.found.empty()) << part;
    EXPECT_EQ(static_cast<int>(result.found.size()) + left_out(result), result.tried) << part;
  }
}

}  // namespace
}  // namespace hyperslab::plan
