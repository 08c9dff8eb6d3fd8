// SPDX-License-Identifier: Apache-2.0
#include "step_clock.hpp"

#include <gtest/gtest.h>

namespace hyperslab::run {
namespace {

TEST(StepClock, ReportsTheEndsOfStepsThatAreLearnedOfTogether) {
  StepClock clock;
  for (const int step : {1, 2, 3}) clock.begin(step, 10 + 0.01 * step);  // on a GPU they queue up

  EXPECT_DOUBLE_EQ(clock.end(1, 1.0, 13.5), 11.01);
  EXPECT_DOUBLE_EQ(clock.end(2, 1.0, 13.5), 12.01);
  EXPECT_DOUBLE_EQ(clock.end(3, 1.0, 13.5), 13.01);
}

TEST(StepClock, CountsWhatHappensBetweenSteps) {
  StepClock clock;
  clock.begin(1, 10);
  EXPECT_DOUBLE_EQ(clock.end(1, 1.0, 15), 11);
  clock.begin(2, 15);  // after an evaluation of 4 s
  EXPECT_DOUBLE_EQ(clock.end(2, 1.0, 17), 16);
}

TEST(StepClock, NeitherRunsAheadNorBack) {
  StepClock clock;
  clock.begin(1, 10);
  clock.begin(2, 10.5);
  EXPECT_DOUBLE_EQ(clock.end(1, 2.0, 11), 11);
  EXPECT_DOUBLE_EQ(clock.end(2, 0.0, 11), 11);
}

}  // namespace
}  // namespace hyperslab::run
