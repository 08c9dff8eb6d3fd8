// SPDX-License-Identifier: Apache-2.0
#include "stop_request.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include "hyperslab/core/recorder.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::run {
namespace {

/// Steps of a second each, from the moment 0 on.
void begin_steps(StopRequest& stop, int count) {
  for (int i = 0; i < count; ++i) stop.begin_step(i);
}

TEST(StopRequest, TimeIsOverWhenStepsASaveAndAMarginNeedTheRest) {
  StopRequest stop(nullptr, {.end = 100, .whole_seconds = 100, .source = "run.walltime_minutes"});
  EXPECT_FALSE(stop.is_asked(99)) << "before the first step, which would make no progress for ever";
  begin_steps(stop, 6);

  stop.note_save(10);

  EXPECT_DOUBLE_EQ(stop.reserve_seconds(), 3 * 1 + 1.5 * 10 + 2);
  EXPECT_FALSE(stop.is_asked(79));
  EXPECT_TRUE(stop.is_asked(80));
  EXPECT_EQ(stop.reason(81),
            "since 19 s of run.walltime_minutes are left: 3 steps of up to 1.00 s and a save of up "
            "to 15.0 s need 20 s");
}

TEST(StopRequest, TheLongestStepAndSaveCountButNotTheFirstStepsNorPauses) {
  StopRequest stop(nullptr, {.end = 1000, .whole_seconds = 1000, .source = "x"});
  stop.expect_save(40);
  stop.begin_step(0);
  stop.begin_step(50);  // chose algorithms
  stop.begin_step(51);
  EXPECT_DOUBLE_EQ(stop.reserve_seconds(), 3 * 50 + 1.5 * 40 + 20) << "nothing else is known";
  stop.begin_step(52);
  stop.note_pause(30);  // a validation
  stop.begin_step(84);
  stop.note_save(4);
  stop.note_save(3);
  stop.note_pause(6);  // what training waited for them
  stop.begin_step(92);

  EXPECT_DOUBLE_EQ(stop.reserve_seconds(), 3 * 2 + 1.5 * 4 + 20);
}

TEST(StopRequest, ASignalCountsAtOnceAndIsNamed) {
  volatile int signal = 0;
  StopRequest stop(&signal, {});
  begin_steps(stop, 3);
  EXPECT_FALSE(stop.is_asked(1e9)) << "there is no limit";

  signal = SIGUSR1;

  EXPECT_TRUE(stop.is_asked(0));
  EXPECT_TRUE(stop.is_signalled());
  EXPECT_EQ(stop.reason(0), "on request (SIGUSR1)");
}

TEST(StopRequest, AnotherRankThatWasAskedIsNamed) {
  const StopRequest stop(nullptr, {});
  EXPECT_EQ(stop.reason(0), "on request (to another rank)");
}

TEST(SlurmTime, IsReadInItsForms) {
  EXPECT_EQ(seconds_of_slurm_time("1-02:03:04"), 86400 + 7384);
  EXPECT_EQ(seconds_of_slurm_time("02:03:04"), 7384);
  EXPECT_EQ(seconds_of_slurm_time("3:04"), 184);
  EXPECT_EQ(seconds_of_slurm_time("0:00"), 0);
  for (const char* text : {"UNLIMITED", "INVALID", "NOT_SET", "", "1-", "-1", "1:x"}) {
    EXPECT_LT(seconds_of_slurm_time(text), 0) << text;
  }
}

class SlurmLimit : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_END_TIME"}) ::unsetenv(name);
    ::setenv("PATH", path_.c_str(), 1);
  }
  std::string path_ = std::getenv("PATH");
};

TEST_F(SlurmLimit, TheEarlierOfTheTwoCounts) {
  ::setenv("SLURM_JOB_ID", "12", 1);
  ::setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 600).c_str(), 1);
  const double now = now_seconds();

  const TimeLimit slurm = time_limit(60, now - 100);
  const TimeLimit own = time_limit(5, now - 100);

  EXPECT_NEAR(slurm.end, now + 600, 2);
  EXPECT_NEAR(slurm.whole_seconds, 700, 2);
  EXPECT_EQ(slurm.source, "the job's time limit (Slurm)");
  EXPECT_EQ(own.end, now + 200);
  EXPECT_EQ(own.source, "run.walltime_minutes");
}

TEST_F(SlurmLimit, SqueueIsAskedIfTheEnvironmentDoesNotReport) {
  const test::TempFolder folder;
  const std::string command = folder.path() + "/squeue";
  std::ofstream(command) << "#!/bin/sh\n[ \"$3\" = 12 ] && echo 10:00\n";
  std::filesystem::permissions(command, std::filesystem::perms::owner_all);
  ::setenv("PATH", (folder.path() + ":" + path_).c_str(), 1);
  const double now = now_seconds();

  EXPECT_TRUE(std::isinf(time_limit(0, now).end)) << "there is no job";
  ::setenv("SLURM_JOB_ID", "12", 1);
  EXPECT_NEAR(time_limit(0, now).end, now + 600, 5);
  ::setenv("SLURM_JOB_ID", "13", 1);
  EXPECT_TRUE(std::isinf(time_limit(0, now).end)) << "squeue knows nothing";
  ::setenv("SLURM_JOB_ID", "12; touch x", 1);
  EXPECT_TRUE(std::isinf(time_limit(0, now).end)) << "no number is given to a shell";
}

}  // namespace
}  // namespace hyperslab::run
