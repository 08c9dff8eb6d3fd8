// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <limits>

#include "files/storage.hpp"
#include "fixtures.hpp"
#include "hyperslab/core/fault.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using io::CheckpointReader;
using Steps = std::vector<std::int64_t>;

class StepsOnDisk : public testing::Test {
 protected:
  void save(std::int64_t step) { save_well(directory(), step, globals(step)); }
  static Globals globals(std::int64_t step) {
    return make_globals({{"model/a", {5, 3}}}, static_cast<float>(step));
  }
  [[nodiscard]] const std::string& directory() const { return folder_.path(); }
  [[nodiscard]] std::string path(const std::string& name) const { return directory() + "/" + name; }
  [[nodiscard]] Steps listed() const { return io::list_checkpoints(directory()); }
  void expect_opens(std::int64_t step) const {
    const CheckpointReader reader(directory());
    EXPECT_EQ(reader.meta().step, step);
    expect_same(read_whole(reader), globals(step));
  }

 private:
  TempFolder folder_;
};

TEST_F(StepsOnDisk, LatestIsOpenedAndStepsByNumber) {
  for (const std::int64_t step : {10, 20, 30}) save(step);

  EXPECT_EQ(listed(), (Steps{10, 20, 30}));
  expect_opens(30);
  EXPECT_EQ(CheckpointReader(directory(), 10).meta().step, 10);
  EXPECT_EQ(CheckpointReader(path("step_00000020/")).meta().step, 20);
  const auto text =
      refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(directory(), 15); });
  EXPECT_NE(text.find("no checkpoint of step 15; there are: 10 20 30"), std::string::npos) << text;
}

TEST_F(StepsOnDisk, LatestMayNameAnOlderStep) {
  for (const std::int64_t step : {10, 20, 30}) save(step);
  write_file(path("latest"), "step_00000010\n");

  expect_opens(10);
}

TEST_F(StepsOnDisk, LatestThatIsOfNoUseGivesTheNewestCompleteStep) {
  for (const std::int64_t step : {10, 20, 30}) save(step);
  for (const char* text : {"", "step_0000", "step_00000040\n", "\xff\xff", "../step_00000010"}) {
    write_file(path("latest"), text);
    expect_opens(30);
  }
  fs::remove(path("latest"));
  expect_opens(30);
}

TEST_F(StepsOnDisk, LatestThatIsNoFileIsNotWaitedFor) {
  for (const std::int64_t step : {10, 20}) save(step);
  fs::remove(path("latest"));
  ASSERT_EQ(mkfifo(path("latest").c_str(), 0600), 0);
  expect_opens(20);
  fs::remove(path("latest"));
  fs::create_symlink("/dev/zero", path("latest"));
  expect_opens(20);
  fs::remove(path("latest"));
  write_file(path("latest"), "");
  fs::resize_file(path("latest"), std::uintmax_t{1} << 40);  // a hole
  expect_opens(20);
}

TEST_F(StepsOnDisk, DamagedStepsGiveTheNextOlder) {
  for (const std::int64_t step : {10, 20, 30}) save(step);
  write_file(path("step_00000030/manifest.json"), "{\"format\": 1,");
  expect_opens(20);
  fs::remove(path("step_00000020/rank_00000.h5"));
  expect_opens(10);
  EXPECT_EQ(listed(), Steps{10});

  fs::resize_file(path("step_00000010/rank_00000.h5"), 3);
  const auto text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader r(directory()); });
  EXPECT_NE(text.find("none of 3 checkpoints is complete"), std::string::npos) << text;
  EXPECT_NE(text.find("rank_00000.h5: it has 3 bytes"), std::string::npos) << text;
}

TEST_F(StepsOnDisk, NothingThereIsSaid) {
  auto text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader r(directory()); });
  EXPECT_NE(text.find("there is no checkpoint in it"), std::string::npos) << text;
  EXPECT_NE(text.find("no folder step_NNNNNNNN, neither here nor in a folder named checkpoints"),
            std::string::npos)
      << text;
  write_file(path("file"), "");
  text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader r(path("file")); });
  EXPECT_NE(text.find("this is a file, expected a folder"), std::string::npos) << text;
  text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader r(path("none")); });
  EXPECT_NE(text.find("there is no such folder"), std::string::npos) << text;
  EXPECT_EQ(io::list_checkpoints(path("none")), Steps{});
}

TEST_F(StepsOnDisk, OfARunDirectoryItsCheckpointsAreTaken) {
  fs::create_directory(path("run"));
  fs::create_directory(path("run/timing"));
  save(10);
  save(20);
  for (const char* name : {"step_00000010", "step_00000020", "latest"}) {
    fs::create_directory(path("run/checkpoints"));
    fs::rename(path(name), path("run/checkpoints/") + name);
  }

  EXPECT_EQ(CheckpointReader(path("run")).meta().step, 20);
  EXPECT_EQ(CheckpointReader(path("run/")).folder(), path("run/checkpoints/step_00000020"));
  EXPECT_EQ(CheckpointReader(path("run"), 10).meta().step, 10);
  EXPECT_EQ(CheckpointReader(path("run/checkpoints/step_00000010")).meta().step, 10);
}

TEST_F(StepsOnDisk, TemporaryFoldersAreIgnoredAndRemovedByTheNextSave) {
  save(10);
  fs::copy(path("step_00000010"), path("step_00000099.tmp"));
  fs::create_directory(path("step_00000050.tmp"));
  write_file(path("latest.tmp"), "step");
  expect_opens(10);
  EXPECT_EQ(listed(), Steps{10});

  save(20);

  EXPECT_FALSE(fs::exists(path("step_00000099.tmp")));
  EXPECT_FALSE(fs::exists(path("step_00000050.tmp")));
  EXPECT_FALSE(fs::exists(path("latest.tmp")));
  expect_opens(20);
}

TEST_F(StepsOnDisk, AStepThatExistsIsReplaced) {
  save(10);
  const Globals other = make_globals({{"model/other", {7}}}, 5);
  save_well(directory(), 10, other);

  EXPECT_EQ(listed(), Steps{10});
  expect_same(read_whole(CheckpointReader(directory())), other);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), {}), 2);  // the step and latest
}

TEST_F(StepsOnDisk, AnInterruptedReplacementIsStillThere) {
  save(10);
  fs::rename(path("step_00000010"), path("step_00000010.replaced"));
  expect_opens(10);

  save(10);
  save(20);
  EXPECT_FALSE(fs::exists(path("step_00000010.replaced")));
  EXPECT_EQ(listed(), (Steps{10, 20}));
}

TEST_F(StepsOnDisk, PruneKeepsTheNewestAndMilestones) {
  for (const std::int64_t step : {10, 20, 30, 40, 50, 60}) save(step);
  io::prune_checkpoints(directory(), {0, 0});
  EXPECT_EQ(listed(), (Steps{10, 20, 30, 40, 50, 60}));

  io::prune_checkpoints(directory(), {2, 30});
  EXPECT_EQ(listed(), (Steps{30, 50, 60}));

  io::prune_checkpoints(directory(), {1, 0});
  EXPECT_EQ(listed(), Steps{60});
  io::prune_checkpoints(directory(), {1, 0});
  EXPECT_EQ(listed(), Steps{60});
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), {}), 2);
}

TEST_F(StepsOnDisk, PruneCountsOnlyCompleteStepsAndSparesLatest) {
  for (const std::int64_t step : {10, 20, 30, 40}) save(step);
  write_file(path("latest"), "step_00000010\n");
  write_file(path("step_00000040/manifest.json"), "");
  fs::create_directory(path("step_00000035.tmp"));

  io::prune_checkpoints(directory(), {1, 0});

  EXPECT_EQ(listed(), (Steps{10, 30}));
  EXPECT_TRUE(fs::exists(path("step_00000040")));
  EXPECT_FALSE(fs::exists(path("step_00000035.tmp")));
}

TEST_F(StepsOnDisk, PruneSparesTheNewestProvenStep) {
  for (const std::int64_t step : {10, 20, 30, 40}) save(step);

  io::prune_checkpoints(directory(), {1, 0, 39});
  EXPECT_EQ(listed(), (Steps{30, 40}));

  io::prune_checkpoints(directory(), {1, 0, 5});  // proves none of them: only the newest stays
  EXPECT_EQ(listed(), Steps{40});
  save(50);
  io::prune_checkpoints(directory(), {1, 0, 50});
  EXPECT_EQ(listed(), Steps{50});
}

TEST_F(StepsOnDisk, PruneDoesNotCountAbandonedSteps) {
  for (const std::int64_t step : {5, 6, 7, 8}) save(step);  // 7 is of an earlier attempt
  io::prune_checkpoints(directory(), {2, 0, 7, {7}});
  EXPECT_EQ(listed(), (Steps{6, 8}));

  for (const std::int64_t step : {90, 100, 70, 80}) save(step);
  io::prune_checkpoints(directory(), {2, 0, 79, {90, 100}});
  EXPECT_EQ(listed(), (Steps{70, 80, 90, 100}));
  save(95);
  io::prune_checkpoints(directory(), {2, 0, 94, {90, 100}});
  EXPECT_EQ(listed(), (Steps{80, 95, 100}));
}

/// The disk refuses to remove the files of step 10.
int keep_step_10(std::string_view point, const std::string& path) {
  const bool of_step = path.find("step_00000010") != std::string::npos;
  return of_step && point == io::storage::kRemove ? EPERM : 0;
}

TEST_F(StepsOnDisk, WhatCannotBeRemovedStopsNeitherPruningNorSaving) {
  for (const std::int64_t step : {10, 20, 30}) save(step);
  {
    const fault::Injection disk(keep_step_10);
    testing::internal::CaptureStderr();
    io::prune_checkpoints(directory(), {1, 0});
    io::prune_checkpoints(directory(), {1, 0});
    const std::string reported = testing::internal::GetCapturedStderr();

    EXPECT_EQ(listed(), Steps{30});
    const std::string message = "step_00000010.tmp/manifest.json: removing it failed";
    const std::size_t found = reported.find(message);
    EXPECT_NE(found, std::string::npos) << reported;
    EXPECT_EQ(reported.find(message, found + 1), std::string::npos)
        << "reported once: " << reported;
    save(10);  // of the very step whose remains are in the way
    save(40);
    EXPECT_EQ(listed(), (Steps{10, 30, 40}));
    EXPECT_EQ(CheckpointReader(directory(), 10).verify(), std::vector<std::string>{});
    io::prune_checkpoints(directory(), {2, 0});
    EXPECT_EQ(listed(), (Steps{30, 40}));
  }
  save(50);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory()), {}), 4) << "3 steps and latest";
}

TEST(FirstNotFinite, NamesTheFirstTensor) {
  constexpr Dim kMany = (Dim{4} << 20) + 3;  // more than a block
  std::vector<float> a(7, 1.0F);
  std::vector<float> b(static_cast<std::size_t>(kMany), std::numeric_limits<float>::max());
  std::vector<float> c(2, -0.0F);
  const auto slab = [](const char* name, std::vector<float>& values) {
    const Shape shape{static_cast<Dim>(values.size())};
    return io::Slab{name, shape, Hyperslab::whole(shape),
                    CView(values.data(), DType::f32, Device::cpu, shape)};
  };
  const std::vector<io::Slab> slabs = {slab("a", a), slab("b", b), slab("c", c)};
  EXPECT_EQ(io::first_not_finite(slabs, {.writers = 3}), "");
  EXPECT_EQ(io::first_not_finite({}, {.writers = 3}), "");

  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    c.back() = bad;
    EXPECT_EQ(io::first_not_finite(slabs, {.writers = 3}), "c");
    b.back() = bad;
    EXPECT_EQ(io::first_not_finite(slabs, {.writers = 3}), "b");
    EXPECT_EQ(io::first_not_finite(slabs, {.writers = 1}), "b");
    b.back() = 0;
  }
}

}  // namespace
}  // namespace hyperslab::test
