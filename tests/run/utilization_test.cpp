// SPDX-License-Identifier: Apache-2.0
#include "utilization.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace hyperslab::run {
namespace {

using testing::HasSubstr;

plan::MachineRate rate_of(double flops, bool is_measured = true) {
  plan::MachineRate rate;
  rate.flops = flops;
  rate.is_measured = is_measured;
  rate.name = is_measured ? "the measured matrix rate" : "the stated matrix rate";
  rate.source = "fp32";
  return rate;
}

TEST(Utilization, IsAShareOfTheRate) {
  Utilization utilization(rate_of(40e9));
  EXPECT_EQ(utilization.judge(1, 10e9), std::nullopt);
  EXPECT_DOUBLE_EQ(utilization.share(10e9), 0.25);
  EXPECT_EQ(utilization.judge(2, 40e9), std::nullopt);
  EXPECT_DOUBLE_EQ(utilization.share(40e9), 1);
}

TEST(Utilization, IsUnknownFromTheFirstStepOnThatExceedsTheRate) {
  Utilization utilization(rate_of(40e9));
  (void)utilization.judge(1, 10e9);

  const auto warning = utilization.judge(2, 50e9);

  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning,
              HasSubstr("step 2 ran at 1.25 times the measured matrix rate (fp32), which was "
                        "measured while other programs used the machine"));
  EXPECT_TRUE(std::isnan(utilization.share(50e9)));
  EXPECT_EQ(utilization.judge(3, 90e9), std::nullopt) << "reported once";
  EXPECT_TRUE(std::isnan(utilization.share(10e9)));
}

TEST(Utilization, OfAStatedRateIsNotSaidToBeMeasured) {
  Utilization utilization(rate_of(1e9, false));
  EXPECT_THAT(utilization.judge(1, 2e9).value_or(""),
              HasSubstr("the stated matrix rate (fp32), which is therefore not this machine's"));
}

TEST(Utilization, OfNoRateIsUnknownWithoutALine) {
  Utilization utilization(rate_of(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(utilization.judge(1, 1e9), std::nullopt);
  EXPECT_TRUE(std::isnan(utilization.share(1e9)));
}

}  // namespace
}  // namespace hyperslab::run
