// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/checkpoint_follower.hpp"

#include <filesystem>

#include "fixtures.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using io::CheckpointFollower;
using io::CheckpointReader;

class Follower : public testing::Test {
 protected:
  Follower() { save(10); }
  void save(std::int64_t step, float seed = 0) {
    save_well(directory(), step,
              make_globals({{"model/a", {5, 3}}}, seed + static_cast<float>(step)));
  }
  [[nodiscard]] std::string directory() const { return folder_.path() + "/checkpoints"; }
  [[nodiscard]] std::string path(const std::string& name) const { return directory() + "/" + name; }
  [[nodiscard]] CheckpointFollower follower() const {
    return {folder_.path(), CheckpointReader(folder_.path())};
  }
  /// The step that is found; -1: none.
  static std::int64_t next(CheckpointFollower& follower) {
    const auto found = follower.next();
    return found ? found->meta().step : -1;
  }
  void damage(const std::string& step) const {
    const std::string file = path(step + "/rank_00000.h5");
    std::string bytes = read_file(file);
    bytes[bytes.size() - 5] ^= 1;
    write_file(file, bytes);
  }

 private:
  TempFolder folder_;
};

TEST_F(Follower, FindsEachNewCheckpointOnce) {
  CheckpointFollower all = follower();
  EXPECT_EQ(next(all), -1);
  save(20);
  EXPECT_EQ(next(all), 20);
  EXPECT_EQ(next(all), -1);
  save(30);
  save(40);
  EXPECT_EQ(next(all), 40);
  EXPECT_EQ(next(all), -1);
}

TEST_F(Follower, FindsACheckpointThatCameAfterTheKnownOneWasOpened) {
  const CheckpointReader known(directory());
  save(20);
  CheckpointFollower all(directory(), known);
  EXPECT_EQ(next(all), 20);
}

TEST_F(Follower, FindsAStepThatWasWrittenAgainIfItHasOtherValues) {
  CheckpointFollower all = follower();
  save(10);
  EXPECT_EQ(next(all), -1);
  save(10, 0.5);
  EXPECT_EQ(next(all), 10);
}

TEST_F(Follower, GoesBackWithTheRun) {
  save(20);
  CheckpointFollower all = follower();
  write_file(path("latest"), "step_00000010\n");
  EXPECT_EQ(next(all), 10);
}

TEST_F(Follower, PassesOverWhatIsNotWhole) {
  CheckpointFollower all = follower();
  fs::create_directory(path("step_00000020.tmp"));
  fs::create_directory(path("step_00000030"));
  write_file(path("latest"), "step_00000030\n");
  EXPECT_EQ(next(all), -1);
  save(30);
  fs::rename(path("step_00000030/manifest.json"), path("manifest"));
  EXPECT_EQ(next(all), -1);
  fs::rename(path("manifest"), path("step_00000030/manifest.json"));
  EXPECT_EQ(next(all), 30);
}

TEST_F(Follower, PassesOverDamagedValuesUntilTheyAreWrittenAgain) {
  CheckpointFollower all = follower();
  save(20);
  damage("step_00000020");
  testing::internal::CaptureStderr();
  EXPECT_EQ(next(all), -1);
  EXPECT_EQ(next(all), -1);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(told.find("step_00000020 is not used"), told.rfind("step_00000020 is not used"))
      << told;
  EXPECT_NE(told.find("step_00000020 is not used"), std::string::npos) << told;
  save(20);
  EXPECT_EQ(next(all), 20);
}

TEST_F(Follower, ADirectoryThatIsGoneIsNoError) {
  CheckpointFollower all = follower();
  fs::rename(directory(), directory() + "_away");
  EXPECT_EQ(next(all), -1);
  fs::rename(directory() + "_away", directory());
  EXPECT_EQ(next(all), -1);
  save(20);
  EXPECT_EQ(next(all), 20);
}

TEST_F(Follower, ASingleStepIsRefused) {
  const CheckpointReader known(directory());
  const auto text = refusal(ExitCode::usage,
                            [&] { const CheckpointFollower none(path("step_00000010/"), known); });
  EXPECT_NE(text.find("the folder of one step"), std::string::npos) << text;
}

}  // namespace
}  // namespace hyperslab::test
