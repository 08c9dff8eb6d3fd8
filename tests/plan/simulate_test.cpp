// SPDX-License-Identifier: Apache-2.0
// Steps whose time can be told by hand.
#include "hyperslab/plan/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyperslab/core/error.hpp"
#include "plan/made_up_machine.hpp"
#include "train/small_run.hpp"

namespace hyperslab::plan {
namespace {

using Kind = Operation::Kind;

Operation collective(std::uint64_t ticket, double bytes) {
  return {.kind = Kind::collective,
          .name = "all_reduce",
          .group = "data",
          .ticket = ticket,
          .bytes = bytes};
}
Operation wait(std::string_view group, std::uint64_t ticket) {
  return {.kind = Kind::wait, .group = group, .ticket = ticket};
}
Operation message(std::uint64_t ticket, bool sends, int peer, double bytes) {
  return {.kind = Kind::exchange,
          .name = "send",
          .group = "pipeline",
          .ticket = ticket,
          .messages = {{sends, peer, bytes}}};
}

class Simulated : public testing::Test {
 protected:
  SimulatedStep run(std::vector<OperationList> ranks) {
    std::vector<std::vector<OperationList>> steps;
    for (OperationList& rank : ranks) steps.push_back({std::move(rank)});
    parallel_.pipeline = static_cast<int>(steps.size());
    return simulate(steps, parallel_, prices_);
  }
  /// Of one gemm().
  double op_seconds() { return prices_.of_op(op_); }

  MachineFile machine_ = test::made_up_machine();
  mesh::ParallelConfig parallel_;
  Prices prices_{machine_, Precision::bf16};
  Operation op_ = test::gemm(4096, 4096, 4096);
};

TEST_F(Simulated, OpsComeOneAfterTheOther) {
  const SimulatedStep step = run({{op_, op_, op_}});

  EXPECT_NEAR(step.seconds, 3 * op_seconds(), 1e-12);
  EXPECT_NEAR(step.ranks[0].compute, step.seconds, 1e-12);
}

TEST_F(Simulated, ACollectiveHidesBehindComputationAndTheRestIsExposed) {
  parallel_.data = 2;
  const double bytes = 3 * op_seconds() * test::kLinkBytesPerSecond;  // as long as three ops
  const SimulatedStep step = run({{collective(1, bytes), op_, wait("data", 1)}});

  EXPECT_NEAR(step.seconds, 3 * op_seconds(), 0.02 * step.seconds);
  EXPECT_NEAR(step.ranks[0].exposed.at("data"), 2 * op_seconds(), 0.02 * step.seconds);
  EXPECT_NEAR(step.ranks[0].communication.at("data"), step.seconds, 0.02 * step.seconds);
}

TEST_F(Simulated, ComputationBesideACollectiveIsSlower) {
  machine_.overlap_cost["data"] = 0.5;
  parallel_.data = 2;
  const double bytes = op_seconds() * test::kLinkBytesPerSecond;  // as long as one op
  const SimulatedStep step = run({{collective(1, bytes), op_, wait("data", 1)}});

  EXPECT_NEAR(step.seconds, 1.5 * op_seconds(), 0.02 * step.seconds);
}

TEST_F(Simulated, CollectivesOfAGroupWaitForEachOther) {
  parallel_.data = 2;
  const double bytes = op_seconds() * test::kLinkBytesPerSecond;
  const SimulatedStep step =
      run({{collective(1, bytes), collective(2, bytes), wait("data", 2), wait("data", 1)}});

  EXPECT_NEAR(step.seconds, 2 * op_seconds(), 0.02 * step.seconds);
}

TEST_F(Simulated, AMessageStartsWhenBothHaveCalled) {
  const double bytes = op_seconds() * test::kLinkBytesPerSecond;
  const SimulatedStep step = run({{op_, op_, message(1, true, 1, bytes), wait("pipeline", 1)},
                                  {message(1, false, 0, bytes), wait("pipeline", 1), op_}});

  EXPECT_NEAR(step.seconds, 4 * op_seconds(), 0.02 * step.seconds);
  EXPECT_NEAR(step.ranks[1].exposed.at("pipeline"), 3 * op_seconds(), 0.02 * step.seconds);
}

TEST_F(Simulated, AProductGoesBeforeATensorCollectiveOfTheSameMoment) {
  parallel_.tensor = 2;
  const double bytes = op_seconds() * test::kLinkBytesPerSecond;  // as long as one op
  Operation sum = collective(1, bytes);
  sum.group = "tensor";

  EXPECT_NEAR(run({{op_, sum, op_, wait("tensor", 1)}}).seconds, 3 * op_seconds(),
              0.02 * op_seconds());
  EXPECT_NEAR(run({{op_, sum, op_, op_, wait("tensor", 1)}}).seconds, 3 * op_seconds(),
              0.02 * op_seconds());  // hidden by the second
  EXPECT_NEAR(run({{op_, sum, wait("tensor", 1), op_}}).seconds, 3 * op_seconds(),
              0.02 * op_seconds());  // nothing is before it
}

TEST_F(Simulated, UnderThePowerLimitOpsTakeLongerUnlessWaitsMakeUpForIt) {
  machine_.sustained_flops["bf16"] = op_.size.flops / (1.25 * op_seconds());
  machine_.sustained_bytes_per_second = 1e18;
  Prices limited(machine_, Precision::bf16);
  const auto seconds = [&](std::vector<std::vector<OperationList>> steps) {
    parallel_.pipeline = static_cast<int>(steps.size());
    return simulate_sustained(steps, parallel_, limited).seconds;
  };
  const double bytes = op_seconds() * test::kLinkBytesPerSecond;

  EXPECT_NEAR(seconds({{{op_, op_, op_}}}), 3 * 1.25 * op_seconds(), 0.01 * op_seconds());
  // Each rank works for a third of the time.
  EXPECT_NEAR(seconds({{{op_, message(1, true, 1, bytes), wait("pipeline", 1)}},
                       {{message(1, false, 0, bytes), wait("pipeline", 1), op_}}}),
              3 * op_seconds(), 0.02 * op_seconds());
}

TEST_F(Simulated, RanksThatWaitForEverAreFound) {
  EXPECT_THROW(run({{message(1, false, 1, 1e6), wait("pipeline", 1)}, {op_}}), Error);
}

TEST_F(Simulated, TheSecondStepCounts) {
  const std::vector<std::vector<OperationList>> steps = {{{op_, op_, op_}, {op_}}};
  EXPECT_NEAR(simulate(steps, parallel_, prices_).seconds, op_seconds(), 1e-12);
}

TEST(GroupLayouts, FollowTheOrderOfRanks) {
  mesh::ParallelConfig parallel;
  parallel.data = 4;
  parallel.pipeline = 2;
  parallel.tensor = 4;
  const auto nodes = [&](const char* group) { return layout_of(group, parallel, 8).nodes; };

  EXPECT_EQ(nodes("tensor"), 1);
  EXPECT_EQ(nodes("pipeline"), 1);  // ranks 0 and 4
  EXPECT_EQ(nodes("data"), 4);      // ranks 0, 8, 16, 24
  EXPECT_EQ(nodes("world"), 4);
  EXPECT_EQ(layout_of("data", parallel, 8).ranks_per_node, 1);
}

TEST(GroupLayouts, OfExpertsFollowTheOrderOfRanks) {
  const mesh::ParallelConfig parallel = {
      .data = 8, .tensor = 2, .context = 2, .shard = 4, .expert = 2};
  const auto found = [&](const char* group) {
    const GroupLayout layout = layout_of(group, parallel, 8);
    return std::array{layout.ranks, layout.nodes, layout.ranks_per_node};
  };

  EXPECT_EQ(found("expert"), (std::array{2, 1, 2}));        // ranks 0 and 4
  EXPECT_EQ(found("expert_shard"), (std::array{4, 2, 2}));  // ranks 0, 2, 8, 10
  EXPECT_EQ(found("expert_data"), (std::array{8, 4, 2}));   // those, 16, 18, 24, 26
}

/// Every schedule and kind of layout, as the trainer enqueues them.
class SimulatedLayouts : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(SimulatedLayouts, WhatIsStartedIsWaitedForAndTheStepIsAccountedFor) {
  const train::Config config = [] {
    deck::Surroundings surroundings{.ranks = 0, .is_plan = true};
    return deck::read_deck(test::kSmallDeck, "small.yaml", GetParam(), surroundings);
  }();
  train::TrainerOptions options;
  std::vector<std::vector<OperationList>> steps;
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::first_rank_of(config.parallel, stage);
    steps.push_back(make_plan(config, options, rank, 2).operations);
  }
  MachineFile machine = test::made_up_machine();
  machine.ops["fp32"] = machine.ops["bf16"];
  Prices prices(machine, Precision::fp32);

  const SimulatedStep step = simulate(steps, config.parallel, prices);

  EXPECT_GT(step.seconds, 0);
  for (const SimulatedRank& rank : step.ranks) {
    double sum = rank.compute;
    for (const auto& [group, seconds] : rank.exposed) sum += seconds;
    EXPECT_LE(sum, step.seconds * (1 + 1e-9));
    EXPECT_GT(rank.compute, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SimulatedLayouts,
    testing::Values(
        std::vector<std::string>{}, std::vector<std::string>{"parallel.data=2", "parallel.zero=1"},
        std::vector<std::string>{"parallel.data=2", "parallel.zero=2"},
        std::vector<std::string>{"parallel.tensor=2", "parallel.sequence=true"},
        std::vector<std::string>{"parallel.pipeline=2", "parallel.schedule=gpipe"},
        std::vector<std::string>{"parallel.pipeline=3", "parallel.data=2", "parallel.zero=1"},
        std::vector<std::string>{"parallel.pipeline=2", "parallel.schedule=zero_bubble"},
        std::vector<std::string>{"parallel.pipeline=2", "parallel.schedule=interleaved",
                                 "parallel.virtual_stages=2"}));

}  // namespace
}  // namespace hyperslab::plan
