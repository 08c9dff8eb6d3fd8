// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>

#include "checkpoint/steps.hpp"
#include "files/storage.hpp"
#include "fixtures.hpp"
#include "support/nth_fault.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using io::CheckpointReader;

/// A file system that cannot swap folders: it refuses the first renaming of the unfinished step,
/// which is the try to swap. Nothing to refuse if `no_exchange` is false.
fault::Injection::Answer refuse_exchange(bool no_exchange) {
  if (!no_exchange) return {};
  return [refused = false](std::string_view point, const std::string& path) mutable {
    if (point != io::storage::kRename || !path.ends_with("10.tmp") || refused) return 0;
    refused = true;
    return EINVAL;
  };
}

/// A save over an earlier checkpoint of step 10: of a new step, or replacing it.
struct Scenario {
  std::int64_t step = 20;
  bool no_exchange = false;
};

class FaultTest : public testing::TestWithParam<Scenario> {
 protected:
  static std::map<std::string, Shape> shapes() { return {{"model/a", {6, 4}}, {"model/b", {5}}}; }
  [[nodiscard]] std::vector<std::string> save_new(const std::string& directory, int ranks) const {
    std::mt19937 rng(2);
    io::CheckpointMeta meta;
    meta.step = GetParam().step;
    meta.layout = "new";
    meta.vocabulary = {{"vocab.json", "{}"}, {"merges.txt", "a b"}};
    return save_all(directory, meta, scatter(new_, ranks, 2, rng),
                    {.block_bytes = 32, .writers = 1});
  }
  /// True if the directory loads the new checkpoint, false if the old; a failure if
  /// neither or a mixture.
  [[nodiscard]] bool loads_new(const std::string& directory) const {
    const CheckpointReader reader(directory);
    const bool is_new = reader.meta().layout == "new";
    EXPECT_EQ(reader.meta().step, is_new ? GetParam().step : 10);
    EXPECT_EQ(reader.verify(), std::vector<std::string>{});
    expect_same(read_whole(reader), is_new ? new_ : old_);
    return is_new;
  }
  static bool has_temporaries(const std::string& directory) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(io::kTemporary) || name.ends_with(io::kReplaced)) return true;
    }
    return false;
  }

  /// The error names rank, path and cause, and `latest` is as it was.
  static void expect_named(const std::string& error, int what, const std::string& directory) {
    const char* cause = what == EIO ? "Input/output error" : "No space left on device";
    EXPECT_NE(error.find("was not saved: rank "), std::string::npos) << error;
    EXPECT_NE(error.find(directory), std::string::npos) << error;
    EXPECT_NE(error.find(cause), std::string::npos) << error;
    EXPECT_EQ(read_file(directory + "/latest"), "step_00000010\n");
  }

  Globals old_ = make_globals(shapes(), 1);
  Globals new_ = make_globals(shapes(), 1000);
};

TEST_P(FaultTest, TheNthFailingCallLeavesOldOrNew) {
  constexpr int ranks = 2;
  for (const int what : {ENOSPC, EIO, fault::kShortWrite}) {
    int failures = 0;
    for (int n = 1;; ++n) {
      SCOPED_TRACE(testing::Message() << "errno " << what << " at call " << n);
      ASSERT_LT(n, 500);
      const TempFolder folder;
      save_well(folder.path(), 10, old_);
      std::vector<std::string> errors;
      std::string point;
      {
        const NthFault fault(n, what, refuse_exchange(GetParam().no_exchange));
        errors = save_new(folder.path(), ranks);
        if (!fault.hit()) break;
        point = fault.point();
      }

      EXPECT_EQ(errors, std::vector<std::string>(ranks, errors[0])) << "all ranks say the same";
      const bool failed = !errors[0].empty();
      failures += failed ? 1 : 0;
      if (failed) expect_named(errors[0], what, folder.path());
      EXPECT_EQ(loads_new(folder.path()), !failed);
      // If removing itself fails, something stays until the next save.
      EXPECT_TRUE(point == io::storage::kRemove || !has_temporaries(folder.path()));
      EXPECT_EQ(save_new(folder.path(), ranks), std::vector<std::string>(ranks));
      EXPECT_TRUE(loads_new(folder.path()));
      EXPECT_FALSE(has_temporaries(folder.path()));
    }
    if (what == fault::kShortWrite) {
      EXPECT_EQ(failures, 0) << "a short write is continued";
    } else {
      EXPECT_GT(failures, 15);
    }
  }
}

TEST_P(FaultTest, ThreeFailingWritersGiveTheLowestRanksError) {
  const TempFolder folder;
  save_well(folder.path(), 10, old_);
  std::vector<std::string> errors;
  {
    const fault::Injection disk([](std::string_view point, const std::string& path) {
      const bool of_rank_0 = path.find("rank_00000") != std::string::npos;
      return point == io::storage::kWrite && !of_rank_0 ? ENOSPC : 0;
    });
    errors = save_new(folder.path(), 3);
  }

  EXPECT_EQ(errors, std::vector<std::string>(3, errors[0]));
  EXPECT_NE(errors[0].find("rank 1: "), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("rank_00001.h5: writing failed: No space left on device"),
            std::string::npos)
      << errors[0];
  EXPECT_FALSE(loads_new(folder.path()));
  EXPECT_FALSE(has_temporaries(folder.path()));
}

/// Saves in a child that kills itself before the n-th call. Returns whether it died of that.
bool killed_at(int n, bool no_exchange, const std::function<void()>& save) {
  const pid_t child = ::fork();
  if (child == 0) {
    const NthFault fault(n, kKill, refuse_exchange(no_exchange));
    save();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST_P(FaultTest, KillAtEveryCallLeavesOldOrNew) {
  bool was_new = false;
  int kills = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE(testing::Message() << "killed at call " << n);
    ASSERT_LT(n, 500);
    const TempFolder folder;
    save_well(folder.path(), 10, old_);
    const bool killed =
        killed_at(n, GetParam().no_exchange, [&] { (void)save_new(folder.path(), 1); });
    const bool is_new = loads_new(folder.path());
    EXPECT_TRUE(is_new || !was_new) << "once new, always new";
    was_new = is_new;
    if (!killed) break;
    ++kills;
    EXPECT_EQ(save_new(folder.path(), 1), std::vector<std::string>{""});
    EXPECT_TRUE(loads_new(folder.path()));
    EXPECT_FALSE(has_temporaries(folder.path()));
  }
  EXPECT_TRUE(was_new);
  EXPECT_GT(kills, 15);
}

std::string scenario_name(const testing::TestParamInfo<Scenario>& scenario) {
  if (scenario.param.step == 20) return "NewStep";
  return scenario.param.no_exchange ? "ReplaceByTwoRenames" : "ReplaceByExchange";
}

INSTANTIATE_TEST_SUITE_P(Saves, FaultTest,
                         testing::Values(Scenario{20, false}, Scenario{10, false},
                                         Scenario{10, true}),
                         scenario_name);

TEST(PruneFault, KillAtEveryCallKeepsTheNewest) {
  const Globals globals = make_globals({{"model/a", {3}}}, 1);
  for (int n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100);
    const TempFolder folder;
    for (const std::int64_t step : {10, 20, 30}) save_well(folder.path(), step, globals);
    const bool killed = killed_at(n, false, [&] { io::prune_checkpoints(folder.path(), {1, 0}); });
    for (const std::int64_t step : io::list_checkpoints(folder.path())) {
      expect_same(read_whole(CheckpointReader(folder.path(), step)), globals);
    }
    EXPECT_EQ(CheckpointReader(folder.path()).meta().step, 30);
    if (!killed) break;
    io::prune_checkpoints(folder.path(), {1, 0});
    EXPECT_EQ(io::list_checkpoints(folder.path()), std::vector<std::int64_t>{30});
  }
}

TEST(SaveFault, AnUnwritableDirectoryIsNamed) {
  const TempFolder folder;
  write_file(folder.path() + "/file", "");
  const std::string directory = folder.path() + "/file/checkpoints";

  const auto errors = save_all(directory, {}, whole(make_globals({{"model/a", {3}}}, 1)));

  EXPECT_NE(errors[0].find(directory + ": making the folder failed: Not a directory"),
            std::string::npos)
      << errors[0];
}

}  // namespace
}  // namespace hyperslab::test
