// SPDX-License-Identifier: Apache-2.0
// Checkpoints in the memory of hosts. Two ranks at a time pretend to be a host of their own.
#include "hyperslab/io/memory_checkpoints.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/run_id.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;
using test::world;

constexpr Dim kRows = 5;
constexpr int kRanksOfHost = 2;
constexpr const char* kFirstFile = "/step_00000003/rank_00000.h5";

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

/// A run whose directory nothing looks at.
MemoryCheckpoints::Run run_named(const std::string& id) { return {id, "/none/" + id}; }

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

/// Flips the second last byte of a file; false if it is not there.
bool damage(const std::string& path) {
  if (!fs::exists(path)) return false;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto offset = static_cast<std::streamoff>(fs::file_size(path)) - 2;
  file.seekg(offset);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(offset);
  file.put(byte);
  return true;
}

/// The memory of a run on its hosts. All ranks leave together: their folders go with them.
struct Setting {
  Places places;
  Ranks ranks;
  MemoryCheckpoints memory{ranks, places.memory(), run_named("a")};

  Setting() = default;
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  Setting(Setting&&) = delete;
  Setting& operator=(Setting&&) = delete;
  ~Setting() { world().barrier(); }

  [[nodiscard]] std::string folder_of(int host) const {
    return fs::path(memory.folder()).parent_path().string() + "/host" + std::to_string(host);
  }
  /// Rank 0 calls `work` with the folder of each host.
  void on_each_host(const std::function<void(const std::string&)>& work) const {
    as_first([&] {
      for (int host = 0; host < hosts(); ++host) work(folder_of(host));
    });
  }
  [[nodiscard]] std::optional<std::int64_t> bring(MemoryCheckpoints::Wanted wanted = {}) {
    return memory.bring_to_disk(ranks, places.disk(), wanted);
  }
};

class MemoryCheckpointsTest : public testing::Test, protected Setting {};

TEST_F(MemoryCheckpointsTest, KeepTheNewestStepAndBringItToTheDisk) {
  for (const std::int64_t step : {5, 6, 7}) EXPECT_EQ(save(memory, step), "");
  int steps = 0;
  for (const auto& entry : fs::directory_iterator(memory.folder())) {
    if (entry.is_regular_file()) continue;  // it names the run
    EXPECT_EQ(entry.path().filename(), "step_00000007");
    ++steps;
  }
  EXPECT_EQ(steps, 1);
  world().barrier();

  EXPECT_FALSE(bring({.newer_than = 7}));
  EXPECT_FALSE(bring({.only = 6}));
  EXPECT_EQ(bring({.newer_than = 6}), 7);

  expect_values(places.disk(), 7);
  world().barrier();
  memory.clear();
  world().barrier();
  EXPECT_FALSE(fs::exists(memory.folder()));
}

TEST(MemoryCheckpointsOnHosts, SurviveTheLossOfAnyOneHost) {
  if (hosts() < 2) return;  // a single host keeps no copies
  for (int lost = 0; lost < hosts(); ++lost) {
    Setting one;
    EXPECT_EQ(save(one.memory, 3), "");
    as_first([&] { fs::remove_all(one.folder_of(lost)); });

    EXPECT_EQ(one.bring(), 3) << "host " << lost << " is lost";

    expect_values(one.places.disk(), 3);
  }
}

TEST_F(MemoryCheckpointsTest, AreLeftOutIfTheyAreNotWhole) {
  EXPECT_EQ(save(memory, 3), "");
  on_each_host([](const std::string& folder) { fs::remove(folder + kFirstFile); });

  EXPECT_FALSE(bring());

  EXPECT_TRUE(list_checkpoints(places.disk()).empty());
}

TEST_F(MemoryCheckpointsTest, AreLeftOutIfAByteIsWrong) {
  EXPECT_EQ(save(memory, 3), "");
  on_each_host([](const std::string& folder) { (void)damage(folder + kFirstFile); });

  EXPECT_FALSE(bring());

  EXPECT_TRUE(list_checkpoints(places.disk()).empty());
  if (world().rank() == 0) {
    EXPECT_TRUE(!fs::exists(places.disk()) || fs::is_empty(places.disk()))
        << "nothing half-written";
  }
}

TEST_F(MemoryCheckpointsTest, OfAnotherRunAreNotTaken) {
  const MemoryCheckpoints one(ranks, places.memory(), run_named("one"));
  const MemoryCheckpoints other(ranks, places.memory(), run_named("other"));
  EXPECT_EQ(save(one, 3), "");

  EXPECT_FALSE(other.bring_to_disk(ranks, places.disk(), {}));
}

TEST(MemoryCheckpointsOnHosts, ADamagedFileIsTakenFromTheNextHost) {
  if (hosts() < 2) return;
  for (int damaged = 0; damaged < 2; ++damaged) {
    Setting one;
    EXPECT_EQ(save(one.memory, 3), "");
    as_first([&] { EXPECT_TRUE(damage(one.folder_of(damaged) + kFirstFile)); });

    EXPECT_EQ(one.bring(), 3) << "host " << damaged;

    expect_values(one.places.disk(), 3);
  }
}

TEST_F(MemoryCheckpointsTest, ADamagedStepIsReplacedByTheNextSaveOfIt) {
  EXPECT_EQ(save(memory, 3), "");
  on_each_host([](const std::string& folder) { (void)damage(folder + kFirstFile); });

  EXPECT_EQ(save(memory, 3), "");

  EXPECT_EQ(bring(), 3);
  expect_values(places.disk(), 3);
}

TEST_F(MemoryCheckpointsTest, AStepUnderAnothersNameIsLeftOut) {
  EXPECT_EQ(save(memory, 3), "");
  on_each_host([](const std::string& folder) {
    fs::copy(folder + "/step_00000003", folder + "/step_00000099", fs::copy_options::recursive);
  });

  EXPECT_EQ(bring(), 3);

  expect_values(places.disk(), 3);
}

fs::perms mode_of(const std::string& path) { return fs::status(path).permissions(); }

TEST_F(MemoryCheckpointsTest, AreOfThisUserAlone) {
  EXPECT_EQ(save(memory, 3), "");

  EXPECT_EQ(mode_of(memory.folder()), fs::perms::owner_all);
  EXPECT_EQ(mode_of(fs::path(memory.folder()).parent_path().string()), fs::perms::owner_all);
  for (const auto& entry : fs::recursive_directory_iterator(memory.folder())) {
    const auto expected = entry.is_directory() ? fs::perms::owner_all
                                               : fs::perms::owner_read | fs::perms::owner_write;
    EXPECT_EQ(entry.status().permissions(), expected) << entry.path();
  }
}

/// A run's folder that someone else could have made first: `make` makes it at the path.
void expect_refused(const std::string& victim_of, const std::string& message,
                    const std::function<void(const fs::path&)>& make) {
  Setting one;
  const std::string step = one.places.disk() + "/precious/step_00000009";
  const fs::path host = one.memory.folder();
  as_first([&] {
    fs::create_directories(step);
    fs::create_directory(one.places.memory());
    fs::permissions(one.places.memory(), fs::perms::owner_all);
    if (victim_of == "host") {
      fs::create_directory(host.parent_path());
      fs::permissions(host.parent_path(), fs::perms::owner_all);
    }
    make(victim_of == "host" ? host : host.parent_path());
  });

  EXPECT_THAT(save(one.memory, 3), testing::HasSubstr(message));
  EXPECT_FALSE(one.memory.bring_to_disk(one.ranks, one.places.disk() + "/new", {}));
  world().barrier();
  one.memory.clear();
  one.memory.remove_forgotten();
  world().barrier();

  EXPECT_TRUE(fs::exists(step)) << "nothing beyond a link is removed";
}

TEST(MemoryCheckpointsOfOthers, FoldersThatOthersCouldHaveMadeAreRefused) {
  for (const std::string which : {"run", "host"}) {
    expect_refused(which, "it is a link or a file", [](const fs::path& path) {
      const fs::path disk = path.parent_path().filename() == "memory"
                                ? path.parent_path().parent_path() / "disk"
                                : path.parent_path().parent_path().parent_path() / "disk";
      fs::create_directory_symlink(disk / "precious", path);
    });
    expect_refused(which, "mode 0777, expected 0700", [](const fs::path& path) {
      fs::create_directory(path);
      fs::permissions(path, fs::perms::all);
    });
    if (::geteuid() != 0) continue;
    expect_refused(which, "it belongs to user 65534", [](const fs::path& path) {
      fs::create_directory(path);
      fs::permissions(path, fs::perms::owner_all);
      EXPECT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    });
  }
}

TEST_F(MemoryCheckpointsTest, ADirectoryInWhichOthersMayReplaceFoldersIsRefused) {
  as_first([&] {
    fs::create_directory(places.memory());
    fs::permissions(places.memory(), fs::perms::all);
  });
  EXPECT_THAT(save(memory, 3), testing::HasSubstr("make it sticky"));

  as_first([&] { fs::permissions(places.memory(), fs::perms::all | fs::perms::sticky_bit); });

  EXPECT_EQ(save(memory, 3), "");
}

TEST_F(MemoryCheckpointsTest, ADirectoryOfAnotherUserIsRefused) {
  if (::geteuid() != 0) return;
  as_first([&] {
    fs::create_directory(places.memory());
    EXPECT_EQ(::chown(places.memory().c_str(), 65534, 65534), 0);
  });

  EXPECT_THAT(save(memory, 3), testing::HasSubstr("belongs to user 65534"));
  EXPECT_FALSE(bring());
}

TEST_F(MemoryCheckpointsTest, OfAnotherRunUnderThisOnesNameAreNotTaken) {
  fs::path renamed;
  {
    const MemoryCheckpoints other(ranks, places.memory(), run_named("other"));
    EXPECT_EQ(save(other, 3), "");
    renamed = fs::path(other.folder()).parent_path();
  }
  as_first([&] { fs::rename(renamed, fs::path(memory.folder()).parent_path()); });

  EXPECT_FALSE(bring());
  EXPECT_THAT(save(memory, 4), testing::HasSubstr("belong to another run"));

  EXPECT_FALSE(bring());
}

/// A run's directory with an id of its own.
void make_run(const std::string& path) {
  as_first([&] {
    fs::create_directories(path);
    (void)write_run_id(path);
  });
}

TEST_F(MemoryCheckpointsTest, OfAnEarlierRunInTheDirectoryAreNotTaken) {
  const std::string run = places.disk() + "/checkpoints";
  make_run(run);
  const std::string first = read_run_id(run);
  {
    const MemoryCheckpoints held(ranks, places.memory(), {first, run});
    EXPECT_EQ(save(held, 3), "");
  }
  as_first([&] { fs::remove_all(run); });
  const std::string none = read_run_id(run);
  make_run(run);
  const std::string second = read_run_id(run);

  for (const std::string& id : {none, second}) {
    const MemoryCheckpoints held(ranks, places.memory(), {id, run});
    EXPECT_FALSE(held.bring_to_disk(ranks, run, {}));
  }
  const MemoryCheckpoints again(ranks, places.memory(), {first, run});
  EXPECT_EQ(again.bring_to_disk(ranks, run, {}), 3);

  EXPECT_EQ(none, "");
  EXPECT_NE(second, first);
}

TEST_F(MemoryCheckpointsTest, ThatTheDiskIsAheadOfAreRemovedByAnotherRun) {
  const std::string run = places.disk() + "/checkpoints";
  make_run(run);
  std::string folder;
  {
    const MemoryCheckpoints held(ranks, places.memory(), {read_run_id(run), run});
    folder = held.folder();
    EXPECT_EQ(save(held, 3), "");
  }
  const MemoryCheckpoints other(ranks, places.memory(), run_named("other"));
  world().barrier();
  other.remove_forgotten();
  world().barrier();
  const bool stays_while_it_is_newer = fs::exists(folder);
  {
    const MemoryCheckpoints held(ranks, places.memory(), {read_run_id(run), run});
    EXPECT_EQ(held.bring_to_disk(ranks, run, {}), 3);
  }
  world().barrier();

  other.remove_forgotten();

  world().barrier();
  EXPECT_TRUE(stays_while_it_is_newer);
  EXPECT_FALSE(fs::exists(folder));
}

TEST(RunId, ACopyOfTheDirectoryHasNone) {
  const test::TempFolder folder;
  const std::string made = folder.path() + "/made";
  fs::create_directory(made);

  const std::string id = write_run_id(made);
  fs::copy(made, folder.path() + "/copy", fs::copy_options::recursive);
  fs::create_directory_symlink(made, folder.path() + "/link");

  EXPECT_EQ(id.size(), 32);
  EXPECT_EQ(read_run_id(made), id);
  EXPECT_EQ(read_run_id(folder.path() + "/link"), id);
  EXPECT_EQ(read_run_id(folder.path() + "/copy"), "");
  EXPECT_NE(write_run_id(folder.path() + "/copy"), id);
  remove_run_id(made);
  EXPECT_EQ(read_run_id(made), "");
}

TEST_F(MemoryCheckpointsTest, ThatNoOneCameBackForAreRemovedAfterADay) {
  auto old_owner = std::make_unique<MemoryCheckpoints>(ranks, places.memory(), run_named("old"));
  const std::string old_folder = old_owner->folder();
  const MemoryCheckpoints newer(ranks, places.memory(), run_named("newer"));
  EXPECT_EQ(save(*old_owner, 3), "");
  EXPECT_EQ(save(newer, 4), "");
  as_first([&] {
    const auto then = fs::file_time_type::clock::now() - std::chrono::hours(25);
    const fs::path folder = fs::path(old_folder).parent_path();
    for (const auto& host : fs::directory_iterator(folder)) fs::last_write_time(host.path(), then);
    fs::last_write_time(folder, then);
  });

  const MemoryCheckpoints third(ranks, places.memory(), run_named("third"));
  third.remove_forgotten();
  const bool stays_while_held = fs::exists(old_folder);
  world().barrier();
  old_owner.reset();
  world().barrier();
  third.remove_forgotten();
  world().barrier();

  EXPECT_TRUE(stays_while_held);
  EXPECT_FALSE(fs::exists(fs::path(old_folder).parent_path()));
  EXPECT_TRUE(fs::exists(newer.folder() + "/step_00000004"));
}

}  // namespace
}  // namespace hyperslab::io
