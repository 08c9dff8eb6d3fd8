// SPDX-License-Identifier: Apache-2.0
// Checkpoints in the memory of hosts. Two ranks at a time pretend to be a host of their own.
#include "hyperslab/io/memory_checkpoints.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;
using test::world;

constexpr Dim kRows = 5;
constexpr int kRanksOfHost = 2;

std::string host_of(int rank) { return "host" + std::to_string(rank / kRanksOfHost); }
int hosts() { return (world().size() + kRanksOfHost - 1) / kRanksOfHost; }

/// The world on its pretended hosts.
class Ranks final : public comm::Peers {
 public:
  [[nodiscard]] int rank() const override { return world().rank(); }
  [[nodiscard]] int size() const override { return world().size(); }
  [[nodiscard]] const std::string& host() const override { return host_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return world().all_gather(text);
  }

 private:
  std::string host_ = host_of(world().rank());
};

/// Folders that all ranks know: the hosts' memory, and the disk.
class Places {
 public:
  [[nodiscard]] const std::string& memory() const { return memory_; }
  [[nodiscard]] const std::string& disk() const { return disk_; }

 private:
  test::TempFolder own_;
  std::string memory_ = world().broadcast(own_.path() + "/memory");
  std::string disk_ = world().broadcast(own_.path() + "/disk");
};

float value(std::int64_t step, Dim element) {
  return static_cast<float>(1000 * step) + static_cast<float>(element);
}

/// Saves into memory from a thread, as a run does. Returns the error of this rank.
std::string save(const MemoryCheckpoints& memory, std::int64_t step) {
  const Shape shape = {kRows * world().size(), 3};
  Tensor mine(Device::cpu, DType::f32, {kRows, 3});
  float* data = mine.view().data<float>();
  for (Dim i = 0; i < kRows * 3; ++i) data[i] = value(step, kRows * 3 * world().rank() + i);
  const std::vector<Slab> slabs = {
      {"model/rows", shape, {{kRows * world().rank(), 0}, {kRows, 3}}, mine.view()}};
  CheckpointMeta meta;
  meta.step = step;
  const auto peers = world().background_peers();
  std::atomic<bool> done = false;
  std::string failure;
  std::thread thread([&] {
    try {
      memory.save(*peers, meta, slabs, {});
    } catch (const std::exception& error) {
      failure = error.what();
    }
    done = true;
  });
  while (!done) peers->progress();
  thread.join();
  world().barrier();
  return failure;
}

void expect_values(const std::string& disk, std::int64_t step) {
  const CheckpointReader reader(disk);
  EXPECT_EQ(reader.meta().step, step);
  EXPECT_TRUE(reader.verify().empty());
  Tensor all(Device::cpu, DType::f32, {kRows * world().size(), 3});
  const std::vector<SlabTarget> targets = {
      {"model/rows", all.view().shape(), {{0, 0}, all.view().shape()}, all.view()}};
  reader.read(targets);
  for (Dim i = 0; i < all.view().numel(); ++i) {
    EXPECT_EQ(all.view().data<float>()[i], value(step, i));
  }
}

/// What rank 0 does to the memory of a host, while the others wait.
void as_first(const std::function<void()>& work) {
  world().barrier();
  if (world().rank() == 0) work();
  world().barrier();
}

std::string folder_of(const MemoryCheckpoints& memory, int host) {
  return fs::path(memory.folder()).parent_path().string() + "/host" + std::to_string(host);
}

TEST(MemoryCheckpoints, KeepTheNewestStepAndBringItToTheDisk) {
  const Places places;
  Ranks ranks;
  const MemoryCheckpoints memory(ranks, places.memory(), "runs/a");
  for (const std::int64_t step : {5, 6, 7}) EXPECT_EQ(save(memory, step), "");
  int steps = 0;
  for (const auto& entry : fs::directory_iterator(memory.folder())) {
    EXPECT_EQ(entry.path().filename(), "step_00000007");
    ++steps;
  }
  EXPECT_EQ(steps, 1);
  world().barrier();

  EXPECT_FALSE(memory.bring_to_disk(ranks, places.disk(), {.newer_than = 7}));
  EXPECT_FALSE(memory.bring_to_disk(ranks, places.disk(), {.only = 6}));
  EXPECT_EQ(memory.bring_to_disk(ranks, places.disk(), {.newer_than = 6}), 7);

  expect_values(places.disk(), 7);
  world().barrier();
  memory.clear();
  world().barrier();
  EXPECT_FALSE(fs::exists(memory.folder()));
  world().barrier();
}

TEST(MemoryCheckpoints, SurviveTheLossOfAnyOneHost) {
  if (hosts() < 2) return;  // a single host keeps no copies
  for (int lost = 0; lost < hosts(); ++lost) {
    const Places places;
    Ranks ranks;
    const MemoryCheckpoints memory(ranks, places.memory(), "runs/a");
    EXPECT_EQ(save(memory, 3), "");
    as_first([&] { fs::remove_all(folder_of(memory, lost)); });

    EXPECT_EQ(memory.bring_to_disk(ranks, places.disk(), {}), 3) << "host " << lost << " is lost";

    expect_values(places.disk(), 3);
    world().barrier();
  }
}

TEST(MemoryCheckpoints, AreLeftOutIfTheyAreNotWhole) {
  const Places places;
  Ranks ranks;
  const MemoryCheckpoints memory(ranks, places.memory(), "runs/a");
  EXPECT_EQ(save(memory, 3), "");
  as_first([&] {
    for (int host = 0; host < hosts(); ++host) {
      fs::remove(folder_of(memory, host) + "/step_00000003/rank_00000.h5");
    }
  });

  EXPECT_FALSE(memory.bring_to_disk(ranks, places.disk(), {}));

  EXPECT_TRUE(list_checkpoints(places.disk()).empty());
  world().barrier();
}

TEST(MemoryCheckpoints, AreLeftOutIfAByteIsWrong) {
  const Places places;
  Ranks ranks;
  const MemoryCheckpoints memory(ranks, places.memory(), "runs/a");
  EXPECT_EQ(save(memory, 3), "");
  as_first([&] {
    for (int host = 0; host < hosts(); ++host) {
      const std::string path = folder_of(memory, host) + "/step_00000003/rank_00000.h5";
      if (!fs::exists(path)) continue;
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(fs::file_size(path)) - 2);
      file.put('\x55');
    }
  });

  EXPECT_FALSE(memory.bring_to_disk(ranks, places.disk(), {}));

  EXPECT_TRUE(list_checkpoints(places.disk()).empty());
  if (world().rank() == 0) {
    EXPECT_TRUE(!fs::exists(places.disk()) || fs::is_empty(places.disk()))
        << "nothing half-written";
  }
  world().barrier();
}

TEST(MemoryCheckpoints, OfAnotherRunAreNotTaken) {
  const Places places;
  Ranks ranks;
  const MemoryCheckpoints one(ranks, places.memory(), "runs/one");
  const MemoryCheckpoints other(ranks, places.memory(), "runs/other");
  EXPECT_EQ(save(one, 3), "");

  EXPECT_FALSE(other.bring_to_disk(ranks, places.disk(), {}));
  world().barrier();
}

TEST(MemoryCheckpoints, ThatNoOneCameBackForAreRemovedAfterADay) {
  const Places places;
  Ranks ranks;
  const MemoryCheckpoints old(ranks, places.memory(), "runs/old");
  const MemoryCheckpoints newer(ranks, places.memory(), "runs/newer");
  EXPECT_EQ(save(old, 3), "");
  EXPECT_EQ(save(newer, 4), "");
  as_first([&] {
    const auto then = fs::file_time_type::clock::now() - std::chrono::hours(25);
    const fs::path folder = fs::path(old.folder()).parent_path();
    for (const auto& host : fs::directory_iterator(folder)) fs::last_write_time(host.path(), then);
    fs::last_write_time(folder, then);
  });

  const MemoryCheckpoints third(ranks, places.memory(), "runs/third");
  world().barrier();

  EXPECT_FALSE(fs::exists(old.folder()));
  EXPECT_TRUE(fs::exists(newer.folder() + "/step_00000004"));
  world().barrier();
}

}  // namespace
}  // namespace hyperslab::io
