// SPDX-License-Identifier: Apache-2.0
// The algorithms of matrix products between ranks and starts, and the warm-up that finds them.
#include "algorithms.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hyperslab/core/error.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab::run {
namespace {

using test::world;

constexpr const char* kPlatform = "cuBLASLt 130100, NVIDIA H200";

ops::AlgorithmCache::Kind kind(int n) { return {n, 1, 2, 3}; }
ops::AlgorithmCache::Algorithm algorithm(int n) { return {static_cast<std::uint64_t>(n), 5}; }

TEST(MergeAlgorithms, TheLowestRankDecidesThenWhatWasKept) {
  const int rank = world().rank();
  const int last = world().size() - 1;
  ops::AlgorithmCache mine;
  mine.add(kPlatform, kind(10 + rank), algorithm(rank));         // of this rank alone
  mine.add(kPlatform, kind(1), algorithm(100 + rank));           // of every rank
  if (rank == last) mine.add(kPlatform, kind(2), algorithm(7));  // of the last rank
  ops::AlgorithmCache kept;
  kept.add(kPlatform, kind(1), algorithm(900));
  kept.add(kPlatform, kind(3), algorithm(900 + rank));
  kept.add("elsewhere", kind(1), algorithm(901));

  const ops::AlgorithmCache all = merge_algorithms(world(), mine, kept);

  EXPECT_EQ(*all.find(kPlatform, kind(1)), algorithm(100));
  EXPECT_EQ(*all.find(kPlatform, kind(2)), algorithm(7));
  EXPECT_EQ(*all.find(kPlatform, kind(3)), algorithm(900));
  EXPECT_EQ(*all.find("elsewhere", kind(1)), algorithm(901));
  for (int r = 0; r <= last; ++r) EXPECT_EQ(*all.find(kPlatform, kind(10 + r)), algorithm(r));
  EXPECT_EQ(world().all_gather(all.text()).front(), all.text());
}

TEST(AlgorithmsFile, ComesBackAndIsWrittenOnlyIfItChanges) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/algorithms.txt";
  ops::AlgorithmCache table;
  table.add(kPlatform, kind(1), algorithm(1));

  EXPECT_EQ(read_algorithms_file(path).size(), 0U);
  write_algorithms_file(path, table);
  EXPECT_EQ(read_algorithms_file(path), table);
  std::filesystem::last_write_time(path, {});
  write_algorithms_file(path, table);
  EXPECT_EQ(std::filesystem::last_write_time(path), std::filesystem::file_time_type());
  table.add(kPlatform, kind(2), algorithm(2));
  write_algorithms_file(path, table);
  EXPECT_EQ(read_algorithms_file(path), table);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AlgorithmsFile, IsLeftOutIfItIsDamaged) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/algorithms.txt";
  ops::AlgorithmCache table;
  table.add(kPlatform, kind(1), algorithm(1));
  std::ofstream(path) << table.text().substr(0, 60);

  EXPECT_EQ(read_algorithms_file(path).size(), 0U);
  write_algorithms_file(path, table);
  EXPECT_EQ(read_algorithms_file(path), table);
}

TEST(AlgorithmsFile, ThatCannotBeWrittenIsAnErrorOfStorage) {
  const test::TempFolder folder;

  try {
    write_algorithms_file(folder.path() + "/absent/algorithms.txt", {});
    ADD_FAILURE() << "it was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
  }
}

std::vector<std::string> layout() {
  switch (world().size()) {
    case 1: return {"parallel.data=1"};
    case 2: return {"parallel.pipeline=2", "model.tie_embeddings=true"};
    default: return {"parallel.data=2", "parallel.tensor=2", "parallel.zero=2"};
  }
}

/// What a checkpoint would hold after three steps, as the bytes of this rank's slabs.
std::vector<std::string> trained(const train::Config& config, bool warmed_up) {
  const auto mesh = train::make_mesh(world(), config, Device::cpu);
  test::SmallRun run(config, *mesh, world().rank());
  if (warmed_up) run.warm_up(1);
  for (int step = 1; step <= 3; ++step) run.step(step);
  std::vector<std::string> bytes;
  for (const io::Slab& slab : run.trainer().state().slabs()) {
    bytes.emplace_back(static_cast<const char*>(slab.data.raw()), slab.data.bytes());
  }
  return bytes;
}

TEST(Rehearsal, ChangesNothing) {
  for (const char* dropout : {"model.dropout=0", "model.dropout=0.2"}) {
    std::vector<std::string> overrides = layout();
    overrides.emplace_back(dropout);
    const train::Config config = test::small_config(overrides, world().size());

    EXPECT_EQ(trained(config, true), trained(config, false)) << dropout;
  }
}

}  // namespace
}  // namespace hyperslab::run
