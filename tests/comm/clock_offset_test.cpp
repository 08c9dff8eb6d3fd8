// SPDX-License-Identifier: Apache-2.0
// Clocks of several machines are brought to that of rank 0.
#include "hyperslab/comm/clock_offset.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "hyperslab/core/recorder.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab {
namespace {

using test::world;

TEST(ClockOffset, RanksOfAMachineHaveOneClock) {
  const comm::ClockOffset offset = comm::measure_clock_offset(world());

  EXPECT_EQ(offset.seconds, 0);
  EXPECT_EQ(offset.error_seconds, 0);
}

/// Two ranks to a machine, whose clock is 1000 s times its number ahead of the true one.
TEST(ClockOffset, IsFoundWithinItsError) {
  const int machine = world().rank() / 2;
  const double ahead = 1000.0 * machine;
  const comm::ClockOffset offset = comm::measure_clock_offset(
      world(), "machine " + std::to_string(machine), [&] { return now_seconds() + ahead; });

  EXPECT_NEAR(offset.seconds, -ahead, offset.error_seconds);
  EXPECT_LT(offset.error_seconds, 0.05);
  EXPECT_EQ(offset.error_seconds > 0, machine > 0);
}

}  // namespace
}  // namespace hyperslab
