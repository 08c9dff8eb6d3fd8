// SPDX-License-Identifier: Apache-2.0
// Checkpoints through a buffer of the host, as GPUs take them, against those without one.
#include "staging.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab::train {
namespace {

using test::small_config;
using test::SmallRun;

/// A trainer after two steps, on one rank.
class Trained {
 public:
  Trained() : mesh_(mesh::Mesh::plan(config_.parallel, 0)), run_(config_, mesh_, 0) {
    run_.step(1);
    run_.step(2);
  }
  [[nodiscard]] Trainer& trainer() { return run_.trainer(); }

 private:
  Config config_ = small_config({}, 1);
  mesh::Mesh mesh_;
  SmallRun run_;
};

/// A tensor for every slab, full of NaN, as a target.
struct Targets {
  explicit Targets(const std::vector<io::Slab>& slabs) {
    for (const io::Slab& slab : slabs) {
      memory.emplace_back(Device::cpu, DType::f32, slab.part.count);
      const View data = memory.back().view();
      std::memset(data.raw(), 0xff, data.bytes());
      all.push_back({slab.tensor, slab.global_shape, {slab.part.offset, slab.part.count}, data});
    }
  }
  std::vector<Tensor> memory;
  std::vector<io::SlabTarget> all;
};

bool equal_bits(CView a, CView b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

TEST(CopyToHost, CopiesWhatSlabsShowAndKeepsItUntilTheyGo) {
  Trained trained;
  const std::vector<io::Slab> direct = trained.trainer().state().slabs();
  std::vector<io::Slab> staged = direct;
  Context ctx(Device::cpu);

  copy_to_host(ctx, staged);

  for (std::size_t i = 0; i < direct.size(); ++i) {
    EXPECT_EQ(direct[i].owner, nullptr) << "nothing is copied on the CPU";
    EXPECT_NE(staged[i].data.raw(), direct[i].data.raw());
    EXPECT_EQ(staged[i].data.shape(), direct[i].data.shape());
    EXPECT_TRUE(equal_bits(staged[i].data, direct[i].data)) << staged[i].tensor;
  }
  const std::weak_ptr<const void> memory = staged.front().owner;
  const io::Slab last = staged.back();
  staged.clear();
  EXPECT_FALSE(memory.expired());
  EXPECT_TRUE(equal_bits(last.data, direct.back().data));
}

TEST(CopyToHost, FreesItsMemoryWithTheLastSlab) {
  Trained trained;
  std::vector<io::Slab> slabs = trained.trainer().state().slabs();
  Context ctx(Device::cpu);
  copy_to_host(ctx, slabs);
  const std::weak_ptr<const void> memory = slabs.front().owner;

  slabs.clear();

  EXPECT_TRUE(memory.expired());
}

TEST(ReadStaged, GivesTheBitsOfAReadWithoutABuffer) {
  Trained trained;
  const test::TempFolder folder;
  Context ctx(Device::cpu);
  std::vector<io::Slab> slabs = trained.trainer().state().slabs();
  copy_to_host(ctx, slabs);
  io::CheckpointMeta meta;
  meta.step = 2;
  io::save_checkpoint(test::world(), folder.path(), meta, slabs);
  const io::CheckpointReader reader(folder.path());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 30}) {
    const Targets targets(slabs);

    read_staged(ctx, reader, targets.all, bytes);

    for (std::size_t i = 0; i < slabs.size(); ++i) {
      EXPECT_TRUE(equal_bits(targets.all[i].data, slabs[i].data)) << slabs[i].tensor;
    }
  }
}

TEST(ReadStaged, NamesAllTensorsThatDoNotFitBeforeItReadsAny) {
  Trained trained;
  const test::TempFolder folder;
  Context ctx(Device::cpu);
  const std::vector<io::Slab> slabs = trained.trainer().state().slabs();
  io::CheckpointMeta meta;
  meta.step = 2;
  io::save_checkpoint(test::world(), folder.path(), meta, slabs);
  const io::CheckpointReader reader(folder.path());
  Targets targets(slabs);
  targets.all[1].tensor = "model/no_one";
  targets.all.back().tensor = "optimizer/exp_avg_sq/no_one";

  try {
    read_staged(ctx, reader, targets.all, 1);
    FAIL() << "two tensors are missing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("2 missing"), testing::HasSubstr("model/no_one"),
                               testing::HasSubstr("exp_avg_sq/no_one")));
  }
  EXPECT_FALSE(equal_bits(targets.all[0].data, slabs[0].data));
}

}  // namespace
}  // namespace hyperslab::train
