// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/agree.hpp"

#include <gmock/gmock.h>

#include <new>
#include <optional>

#include "hyperslab/core/error.hpp"
#include "support/thread_peers.hpp"

namespace hyperslab::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// What one rank saw.
struct Seen {
  std::vector<std::string> results;
  std::optional<Error> error;
};

using Work = std::function<std::string(int rank)>;

std::vector<Seen> run(const std::vector<std::string>& hosts, const Work& work,
                      const OnFailure& on_failure = {}) {
  std::vector<Seen> seen(hosts.size());
  test::as_ranks_on(hosts, [&](Peers& peers) {
    Seen& mine = seen[static_cast<std::size_t>(peers.rank())];
    try {
      mine.results = agree_and_gather(
          peers, [&] { return work(peers.rank()); }, on_failure);
    } catch (const Error& error) {
      mine.error = error;
    }
  });
  return seen;
}

Work fails_from(int first) {
  return [first](int rank) -> std::string {
    if (rank >= first) throw Error(ExitCode::data, "line one\nline two");
    return "fine";
  };
}

TEST(Agree, MemoryThatIsUsedUpIsNoFaultOfTheProgram) {
  test::ThreadJob job({"n1"});
  test::ThreadPeers peers(job, 0);
  try {
    agree(peers, [] { throw std::bad_alloc(); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.what(), HasSubstr("memory is used up"));
  }
}

TEST(Agree, GathersResultsOfAnyText) {
  const auto seen =
      run({"a", "a", "b"}, [](int rank) { return std::string(3, '\n') + std::to_string(rank); });
  for (const Seen& one : seen) {
    EXPECT_FALSE(one.error);
    EXPECT_THAT(one.results, ElementsAre("\n\n\n0", "\n\n\n1", "\n\n\n2"));
  }
}

TEST(Agree, ThrowsTheErrorOfTheLowestRankEverywhere) {
  for (const Seen& one : run({"a", "a", "b"}, fails_from(1))) {
    ASSERT_TRUE(one.error);
    EXPECT_EQ(one.error->code(), ExitCode::data);
    EXPECT_TRUE(one.error->is_on_all_ranks());
    EXPECT_STREQ(one.error->what(), "rank 1 on host a: line one\nline two");
  }
}

TEST(Agree, NamesRankZeroOnlyIfAnotherHostIsSound) {
  const Work first_fails = [](int rank) -> std::string {
    if (rank == 0) throw Error(ExitCode::data, "bad");
    return "";
  };
  EXPECT_STREQ(run({"a", "a"}, first_fails)[1].error->what(), "bad");
  EXPECT_STREQ(run({"a", "b"}, fails_from(0))[1].error->what(), "line one\nline two");
  EXPECT_STREQ(run({"a", "b"}, first_fails)[1].error->what(), "rank 0 on host a: bad");
}

TEST(Agree, KeepsTheSourceOfInternalErrors) {
  const Work broken = [](int) -> std::string { throw Error(ExitCode::internal, "broken"); };
  EXPECT_THAT(run({"a"}, broken)[0].error->what(), HasSubstr("agree_test.cpp:"));
  const Work foreign = [](int) -> std::string { throw std::runtime_error("foreign"); };
  EXPECT_EQ(run({"a"}, foreign)[0].error->code(), ExitCode::internal);
}

TEST(Agree, UndoesOnRankZeroAlone) {
  int undone = 0;
  OnFailure on_failure;
  on_failure.undo = [&] { ++undone; };
  on_failure.message = [](int rank, const std::string& message) {
    return std::to_string(rank) + "/" + message.substr(0, 4);
  };
  const auto seen = run({"a", "b"}, fails_from(1), on_failure);
  EXPECT_EQ(undone, 1);
  EXPECT_STREQ(seen[0].error->what(), "1/line");
  EXPECT_STREQ(seen[1].error->what(), "1/line");
}

}  // namespace
}  // namespace hyperslab::comm
