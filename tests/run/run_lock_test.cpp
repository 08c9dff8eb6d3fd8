// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/run/run_lock.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "hyperslab/core/error.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::run {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// What a second lock of `directory` says; "" if it was granted.
std::string refusal(const std::string& directory) {
  try {
    const RunLock lock(directory, "n2", "run.directory");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return error.what();
  }
}

TEST(RunLock, TheHolderIsReportedToASecondOne) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/runs/x";
  ::setenv("SLURM_JOB_ID", "77", 1);
  {
    RunLock lock(path, "n1", "run.directory");
    lock.keep();
    EXPECT_TRUE(lock.is_held());
    const std::string text = refusal(path);
    const std::string holder =
        path + " is used by process " + std::to_string(::getpid()) + " on host n1 (job 77) since 2";
    EXPECT_TRUE(text.starts_with(holder)) << text;
    EXPECT_NE(text.find("choose another run.directory"), std::string::npos) << text;
    EXPECT_TRUE(text_of(path + "/lock").starts_with("process ")) << "the refused one left it";
  }
  ::unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(text_of(path + "/lock"), "") << "a clean end clears it";
  EXPECT_EQ(refusal(path), "");
}

TEST(RunLock, AStartThatFailedLeavesNothing) {
  const test::TempFolder folder;
  { const RunLock lock(folder.path() + "/a/b/c", "n1", "run.directory"); }
  EXPECT_TRUE(fs::is_empty(folder.path()));

  fs::create_directory(folder.path() + "/d");
  { const RunLock lock(folder.path() + "/d", "n1", "run.directory"); }
  EXPECT_TRUE(fs::is_empty(folder.path() + "/d"));
}

TEST(RunLock, AKilledHolderLeavesNoLock) {
  const test::TempFolder folder;
  int ready[2] = {};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder.path(), "n1", "run.directory");
    (void)!::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(refusal(folder.path()).find("process " + std::to_string(child)), std::string::npos);

  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);

  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(folder.path()), "");
  // The holder was on another host than this one, which flock may not reach.
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_NE(reported.find("still names process " + std::to_string(child) + " on host n1"),
            std::string::npos)
      << reported;
}

TEST(RunLock, WhatThisHostLeftIsNoWarning) {
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/lock") << "process 12 on host n2 since 2026-01-02T03:04:05Z\n";
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal(folder.path()), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(RunLock, ADirectoryThatCannotBeMadeIsNamed) {
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const char* name : {"/file", "/file/run"}) {
    const std::string text = refusal(folder.path() + name);
    EXPECT_NE(text.find(name), std::string::npos) << text;
    const char* reason =
        std::string(name) == "/file" ? "is a file, expected a directory" : "Not a directory";
    EXPECT_NE(text.find(reason), std::string::npos) << text;
  }
}

TEST(IsInside, ResolvesLinks) {
  const test::TempFolder folder;
  const std::string& root = folder.path();
  fs::create_directories(root + "/run/checkpoints");
  fs::create_directory_symlink(root + "/run", root + "/link");
  EXPECT_TRUE(is_inside(root + "/run/checkpoints", root + "/run"));
  EXPECT_TRUE(is_inside(root + "/run/", root + "/run"));
  EXPECT_TRUE(is_inside(root + "/run/not/there/yet", root + "/run/"));
  EXPECT_TRUE(is_inside(root + "/link/checkpoints", root + "/run"));
  EXPECT_FALSE(is_inside(root + "/run2", root + "/run"));
  EXPECT_FALSE(is_inside(root + "/run/../other", root + "/run"));
}

TEST(StaleProbes, AreRemoved) {
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/.probe.123") << "probe";
  std::ofstream(folder.path() + "/.probe.5.renamed") << "probe";
  std::ofstream(folder.path() + "/deck.yaml") << "run";

  remove_stale_probes(folder.path());
  remove_stale_probes(folder.path() + "/none");

  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace hyperslab::run
