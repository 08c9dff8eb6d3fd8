// SPDX-License-Identifier: Apache-2.0
#include "watch_end.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/comm_test.hpp"
#include "hyperslab/comm/time_limit.hpp"

namespace hyperslab::test {
namespace {

using testing::AnyOf;
using testing::Eq;

TEST(WatchEnd, ReportsOfThisProcess) {
  const auto found = comm::process_of(::getpid());

  ASSERT_TRUE(found);
  EXPECT_EQ(
      found->name,
      std::string(program_invocation_short_name).substr(0, 15));  // the system keeps 15 characters
  EXPECT_EQ(found->parent, ::getppid());
  EXPECT_NE(found->state, 'T');
  EXPECT_FALSE(found->start_time.empty());
}

TEST(WatchEnd, SeesAStoppedProcessAndThatOneIsGone) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  ::kill(child, SIGSTOP);
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);

  const auto stopped = comm::process_of(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);

  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->state, 'T');
  EXPECT_FALSE(comm::process_of(child));
}

TEST(WatchEnd, FindsTheLauncherAndNothingElse) {
  const auto launcher = comm::launcher_of(::getpid());

  ASSERT_TRUE(launcher);
  EXPECT_THAT(launcher->name, AnyOf(Eq("mpirun"), Eq("mpiexec"), Eq("orterun"), Eq("prterun"),
                                    Eq("orted"), Eq("prted")));
  EXPECT_FALSE(comm::launcher_of(launcher->id));
}

TEST(WatchEnd, TheLauncherSaysTheRank) { EXPECT_EQ(comm::launcher_rank(), world().rank()); }

TEST(TimeLimit, OneThatIsLiftedEndsNothing) {
  const comm::TimeLimit limit("a test", 0.5);
  comm::TimeLimit::lift();

  std::this_thread::sleep_for(std::chrono::seconds(1));
}

TEST(TimeLimit, OneThatIsLeftInTimeEndsNothing) {
  { const comm::TimeLimit limit("a test", 0.5); }

  std::this_thread::sleep_for(std::chrono::seconds(1));
}

TEST(TimeLimit, ReadsItsSeconds) {
  ::unsetenv("HYPERSLAB_START_TIMEOUT_SECONDS");
  EXPECT_EQ(comm::start_timeout_seconds(), 600);
  ::setenv("HYPERSLAB_START_TIMEOUT_SECONDS", "2.5", 1);
  EXPECT_EQ(comm::start_timeout_seconds(), 2.5);
  for (const char* wrong : {"soon", "-1", "3s", "nan"}) {
    ::setenv("HYPERSLAB_START_TIMEOUT_SECONDS", wrong, 1);
    EXPECT_THROW((void)comm::start_timeout_seconds(), Error) << wrong;
  }
  ::unsetenv("HYPERSLAB_START_TIMEOUT_SECONDS");
}

}  // namespace
}  // namespace hyperslab::test
