// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/watchdog.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "comm/comm_test.hpp"

// What must not end the program; hanging_on_purpose.cpp has what must.
namespace hyperslab::test {
namespace {

constexpr double kTimeout = 1.5;

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

bool is_last_rank() { return world().rank() == world().size() - 1; }

/// From now on the timeout itself holds, not three times as long.
void end_a_step() { world().activity().ended_step = 1; }

TEST(Watchdog, LetsASlowRankFinish) {
  const comm::Watchdog watchdog(world(), {kTimeout, ""});
  end_a_step();

  for (int i = 0; is_last_rank() && i < 6; ++i) {
    sleep(kTimeout / 3);
    world().activity().beat();
  }
  world().barrier();
}

TEST(Watchdog, LetsAPauseLast) {
  const comm::Watchdog watchdog(world(), {kTimeout, ""});
  end_a_step();

  if (is_last_rank()) {
    const Pause pause(world().activity());
    sleep(2 * kTimeout);
  }
  world().barrier();
}

TEST(Watchdog, IsOffWithoutATimeout) {
  const comm::Watchdog watchdog(world(), {0, ""});

  if (is_last_rank()) sleep(1);
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

/// Sockets of this process that wait for connections over IPv4.
std::ptrdiff_t listening_sockets() {
  std::set<std::string> mine;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    mine.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  std::ptrdiff_t count = 0;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    const std::vector<std::string> columns(std::istream_iterator<std::string>(words), {});
    if (columns.size() > 9 && columns[3] == "0A")
      count += mine.contains("socket:[" + columns[9] + "]");
  }
  return count;
}

TEST(Watchdog, ListensToNoOneOnceAllRanksHaveCalled) {
  const std::ptrdiff_t before = listening_sockets();
  const comm::Watchdog watchdog(world(), {60, ""});

  for (int i = 0; i < 100 && listening_sockets() > before; ++i) sleep(0.05);
  EXPECT_EQ(listening_sockets(), before);
  world().barrier();
}

TEST(Watchdog, LeavesAtOnce) {
  const double begin = now_seconds();
  for (int i = 0; i < 10; ++i) {
    const comm::Watchdog watchdog(world(), {60, ""});
  }

  EXPECT_LT(now_seconds() - begin, 2);
}

TEST(Watchdog, AfterAnErrorNoRankWaits) {
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
