// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written beside the main threads, and how their failures reach them.
#include "checkpoint_writer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <numeric>

#include "hyperslab/core/fault.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::run {
namespace {

using test::world;

constexpr Dim kRows = 6;

/// A folder that all ranks know.
class SharedFolder {
 public:
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  test::TempFolder own_;
  std::string path_ = world().broadcast(own_.path());
};

/// Each rank has `kRows` rows of a tensor; values are `first` and upwards.
struct Rows {
  explicit Rows(float first) : memory(Device::cpu, DType::f32, {kRows, 3}) {
    std::iota(memory.view().data<float>(), memory.view().data<float>() + kRows * 3, first);
  }
  [[nodiscard]] SaveJob job(std::int64_t step) const {
    SaveJob job;
    job.meta.step = step;
    job.slabs = {{"model/rows",
                  {kRows * world().size(), 3},
                  {{kRows * world().rank(), 0}, {kRows, 3}},
                  memory.view()}};
    return job;
  }
  Tensor memory;
};

std::vector<float> read_rows(const std::string& folder) {
  const io::CheckpointReader reader(folder);
  Tensor all(Device::cpu, DType::f32, {kRows * world().size(), 3});
  const std::vector<io::SlabTarget> targets = {
      {"model/rows", all.view().shape(), {{0, 0}, all.view().shape()}, all.view()}};
  reader.read(targets);
  const float* data = all.view().data<float>();
  return {data, data + all.view().numel()};
}

TEST(CheckpointWriter, WritesBesideTheMainThread) {
  const SharedFolder folder;
  CheckpointWriter writer(world(), folder.path());
  EXPECT_FALSE(writer.poll());
  for (std::int64_t step = 1; step <= 3; ++step) {
    const Rows rows(100.F * static_cast<float>(step));
    writer.start(rows.job(step), Event());
    EXPECT_TRUE(writer.is_busy());
    while (writer.is_busy()) {
      if (const auto outcome = writer.poll()) {
        EXPECT_TRUE(outcome->is_saved()) << outcome->failure;
        EXPECT_EQ(outcome->step, step);
      }
    }
    world().barrier();
    const std::vector<float> found = read_rows(folder.path());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], 100.F * static_cast<float>(step) + static_cast<float>(i % (3 * kRows)));
    }
    world().barrier();
  }
  EXPECT_EQ(io::list_checkpoints(folder.path()), (std::vector<std::int64_t>{1, 2, 3}));
  world().barrier();
}

TEST(CheckpointWriter, BringsAFailureToAllRanksAndGoesOn) {
  const SharedFolder folder;
  CheckpointWriter writer(world(), folder.path());
  const Rows rows(1);
  {
    const fault::Injection injection([](std::string_view point, const std::string&) {
      const bool mine = world().rank() == world().size() - 1 && point == "file.write";
      return mine ? ENOSPC : 0;
    });
    writer.start(rows.job(1), Event());
    const auto outcome = writer.finish();
    ASSERT_TRUE(outcome);
    EXPECT_FALSE(outcome->is_saved());
    EXPECT_NE(outcome->failure.find("checkpoint of step 1 was not saved"), std::string::npos)
        << outcome->failure;
    world().barrier();
  }
  EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
  world().barrier();

  writer.start(rows.job(2), Event());
  const auto outcome = writer.finish();

  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->is_saved()) << outcome->failure;
  EXPECT_EQ(io::list_checkpoints(folder.path()), std::vector<std::int64_t>{2});
  world().barrier();
}

TEST(CheckpointWriter, NamesATensorThatIsNotFiniteAndWritesNothing) {
  const SharedFolder folder;
  CheckpointWriter writer(world(), folder.path());
  Rows rows(1);
  if (world().rank() == world().size() - 1) rows.memory.view().data<float>()[4] = std::nanf("");

  writer.start(rows.job(1), Event());
  const auto outcome = writer.finish();

  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->not_finite, "model/rows");
  EXPECT_TRUE(outcome->failure.empty());
  EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
  world().barrier();
}

TEST(CheckpointWriter, StartsOnlyWhenTheCopyIsThere) {
  const SharedFolder folder;
  CheckpointWriter writer(world(), folder.path());
  const Rows rows(1);
  std::atomic<bool> copied = false;
  Stream copies(Device::cpu, HostWork::by_thread);
  copies.run([&] {
    while (!copied) std::this_thread::yield();
  });

  writer.start(rows.job(1), copies.record());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(writer.poll());
  EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
  world().barrier();
  copied = true;
  const auto outcome = writer.finish();

  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->is_saved()) << outcome->failure;
  world().barrier();
}

TEST(CheckpointWriter, WritesPiecesThatAreFetched) {
  const SharedFolder folder;
  CheckpointWriter writer(world(), folder.path());
  const Rows rows(7);
  SaveJob job = rows.job(1);
  int fetched = 0;
  job.options.fetch = [&](std::span<const io::Slab> slabs) {
    ++fetched;
    return std::vector<io::Slab>(slabs.begin(), slabs.end());
  };

  const SaveOutcome outcome = writer.write(job);

  EXPECT_TRUE(outcome.is_saved()) << outcome.failure;
  EXPECT_EQ(fetched, 2);  // to look at the values, and to write them
  world().barrier();
  EXPECT_EQ(read_rows(folder.path()).front(), 7);
  world().barrier();
}

}  // namespace
}  // namespace hyperslab::run
