// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/price.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyperslab/core/error.hpp"
#include "plan/made_up_machine.hpp"

namespace hyperslab::plan {
namespace {

using test::gemm;
using test::made_up_machine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Prices, WhatWasMeasuredCostsWhatWasMeasured) {
  const MachineFile machine = made_up_machine();
  Prices prices(machine, Precision::bf16);

  for (const OpRow& row : machine.ops.at("bf16")) {
    const Operation op{.name = row.op, .size = row.size};
    EXPECT_NEAR(prices.of_op(op), row.seconds + row.kernels * machine.launch_seconds,
                1e-9 * row.seconds)
        << row.op;
  }
  EXPECT_TRUE(prices.unknown_ops().empty());
}

TEST(Prices, BetweenTwoSizesLiesTheTimeBetweenThem) {
  const MachineFile machine = made_up_machine();
  Prices prices(machine, Precision::bf16);

  const double small = prices.of_op(gemm(1024, 1024, 1024));
  const double between = prices.of_op(gemm(2048, 1024, 1024));
  const double large = prices.of_op(gemm(4096, 4096, 4096));

  EXPECT_GT(between, 1.2 * small);
  EXPECT_LT(between, large);
}

TEST(Prices, OperandsThatAnOpHasGainedSinceDoNotHideWhatWasMeasured) {
  const MachineFile machine = made_up_machine();
  Prices prices(machine, Precision::bf16);

  for (const OpRow& row : machine.ops.at("bf16")) {
    Operation absent{.name = row.op, .size = row.size};
    absent.size.operands.push_back({});
    Operation given{.name = row.op, .size = row.size};
    given.size.operands.push_back({1, 64});
    const double measured = row.seconds + row.kernels * machine.launch_seconds;
    EXPECT_NEAR(prices.of_op(absent), measured, 1e-9 * row.seconds) << row.op;
    EXPECT_NEAR(prices.of_op(given), measured, 1e-9 * row.seconds) << row.op;
  }
}

TEST(Prices, AnOpThatWasNotMeasuredIsNamed) {
  const MachineFile machine = made_up_machine();
  Prices prices(machine, Precision::bf16);

  EXPECT_GT(prices.of_op({.name = "softcap", .size = {.bytes = 1e6}}), 0);
  (void)prices.of_op({.name = "softcap", .size = {.bytes = 2e6}});

  EXPECT_THAT(prices.unknown_ops(), ElementsAre("softcap"));
}

TEST(Prices, Fp16StandsInForBf16AndFp32ForNone) {
  const MachineFile machine = made_up_machine();

  Prices prices(machine, Precision::fp16);
  EXPECT_GT(prices.of_op(gemm(1024, 1024, 1024)), 0);
  EXPECT_THAT([&] { Prices(machine, Precision::fp32); },
              ThrowsMessage<Error>(HasSubstr("no ops in fp32, only in bf16")));
}

TEST(Prices, CollectivesFollowTheRing) {
  const MachineFile machine = made_up_machine();
  const Prices prices(machine, Precision::bf16);
  constexpr double kBytes = 1 << 30;

  const double two = prices.of_collective("data", "all_reduce", {2, 1, 2}, kBytes);
  const double eight = prices.of_collective("data", "all_reduce", {8, 1, 8}, kBytes);

  EXPECT_NEAR(two, kBytes / test::kLinkBytesPerSecond, 0.01 * two);
  EXPECT_NEAR(eight / two, (2 * 7.0 / 8) / (2 * 1.0 / 2), 0.01);
  EXPECT_EQ(prices.of_collective("data", "all_reduce", {1, 1, 1}, kBytes), 0);
}

TEST(Prices, BetweenNodesTheNetworkBoundsTheGroup) {
  const MachineFile machine = made_up_machine();
  const Prices prices(machine, Precision::bf16);
  constexpr double kBytes = 1 << 30;

  const double one_link = prices.of_collective("data", "all_reduce", {2, 2, 1}, kBytes);
  const double eight_links = prices.of_collective("data", "all_reduce", {16, 2, 8}, kBytes);

  EXPECT_NEAR(one_link, kBytes / machine.network_bytes_per_second, 0.01 * one_link);
  EXPECT_LT(eight_links, one_link);
}

TEST(Prices, WithoutANetworkRateAllRanksAreOnOneNode) {
  MachineFile machine = made_up_machine();
  machine.network_bytes_per_second = 0;
  const Prices prices(machine, Precision::bf16);

  EXPECT_FALSE(prices.knows_network());
  EXPECT_EQ(prices.of_collective("data", "all_reduce", {16, 2, 8}, 1e6),
            prices.of_collective("data", "all_reduce", {16, 1, 16}, 1e6));
}

/// Groups that sum gradients have fewer of NCCL's blocks than those of layers.
TEST(Prices, AGroupThatWasNotMeasuredCostsWhatItsLikeCosts) {
  MachineFile machine = made_up_machine();
  std::erase_if(machine.collectives, [](const CollectiveRow& row) { return row.group != "data"; });
  for (const CollectiveRow& row : std::vector(machine.collectives)) {
    CollectiveRow twice = row;
    twice.group = "tensor";
    twice.seconds /= 2;
    machine.collectives.push_back(twice);
  }
  const Prices prices(machine, Precision::bf16);
  const auto seconds = [&](const char* group) {
    return prices.of_collective(group, "all_reduce", {2, 1, 2}, 1e6);
  };
  EXPECT_EQ(seconds("expert"), seconds("tensor"));
  EXPECT_EQ(seconds("expert_shard"), seconds("data"));
  EXPECT_LT(seconds("tensor"), seconds("data"));
}

TEST(Prices, MoreRanksAddHopsToSmallCollectives) {
  const MachineFile machine = made_up_machine();
  const Prices prices(machine, Precision::bf16);
  constexpr double kBytes = 1024;

  const double two = prices.of_collective("data", "all_reduce", {2, 1, 2}, kBytes);
  const double eight = prices.of_collective("data", "all_reduce", {8, 1, 8}, kBytes);

  EXPECT_NEAR(eight - two, (14 - 2) * 3.4e-6, 1e-7);
}

TEST(Prices, ThePowerLimitBoundsFlopsAndBytesTogether) {
  MachineFile machine = made_up_machine();
  const Operation op = gemm(4096, 4096, 4096);
  EXPECT_EQ(Prices(machine, Precision::bf16).sustained_seconds({op}), 0);  // not known

  machine.sustained_flops["bf16"] = 500e12;
  machine.sustained_bytes_per_second = 5e12;
  const Prices prices(machine, Precision::bf16);
  const double once = op.size.flops / 500e12 + op.size.bytes / 5e12;
  const Operation wait{.kind = Operation::Kind::wait, .group = "data", .ticket = 1};

  EXPECT_NEAR(prices.sustained_seconds({op, wait, op}), 2 * once, 1e-12);
}

TEST(Prices, ACallThatWasNotMeasuredIsRefused) {
  MachineFile machine = made_up_machine();
  machine.collectives.clear();
  const Prices prices(machine, Precision::bf16);

  EXPECT_THAT(
      [&] {
        (void)prices.of_collective("data", "all_reduce", {2, 1, 2}, 1e6);
      },
      ThrowsMessage<Error>(HasSubstr("has no all_reduce")));
}

}  // namespace
}  // namespace hyperslab::plan
