// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/watchdog.hpp"

#include <chrono>
#include <thread>

#include "mpi/comm_test.hpp"

// What must not end the program; hanging_on_purpose.cpp has what must.
namespace hyperslab::test {
namespace {

constexpr double kTimeout = 1.5;

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

bool is_last() { return world().rank() == world().size() - 1; }

/// From now on the timeout itself holds, not three times as long.
void end_a_step() { world().activity().ended_step = 1; }

TEST(Watchdog, LetsASlowRankFinish) {
  const comm::Watchdog watchdog(world(), {kTimeout, ""});
  end_a_step();

  for (int i = 0; is_last() && i < 6; ++i) {
    sleep(kTimeout / 3);
    world().activity().beat();
  }
  world().barrier();
}

TEST(Watchdog, LetsAPauseLast) {
  const comm::Watchdog watchdog(world(), {kTimeout, ""});
  end_a_step();

  if (is_last()) {
    const Pause pause(world().activity());
    sleep(2 * kTimeout);
  }
  world().barrier();
}

TEST(Watchdog, IsOffWithoutATimeout) {
  const comm::Watchdog watchdog(world(), {0, ""});

  if (is_last()) sleep(1);
  world().barrier();
}

TEST(Watchdog, ForgetsRanksThatLeft) {
  for (int leaver = 0; leaver < std::min(3, world().size()); ++leaver) {
    auto watchdog = std::make_unique<comm::Watchdog>(world(), comm::WatchdogOptions{kTimeout, ""});
    end_a_step();

    if (world().rank() == leaver) {
      watchdog.reset();
      sleep(1.5);  // longer than a break is kept to itself
    } else {
      for (int i = 0; i < 15; ++i) {
        sleep(0.1);
        world().activity().beat();
      }
    }
    world().barrier();
  }
}

TEST(Watchdog, LeavesAtOnce) {
  const double begin = now_seconds();
  for (int i = 0; i < 10; ++i) {
    const comm::Watchdog watchdog(world(), {60, ""});
  }

  EXPECT_LT(now_seconds() - begin, 2);
}

TEST(Watchdog, AnErrorLeavesNobodyBehind) {
  try {
    const comm::Watchdog watchdog(world(), {kTimeout, ""});
    throw Error(ExitCode::data, "on purpose");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
  }
  world().barrier();
}

}  // namespace
}  // namespace hyperslab::test
