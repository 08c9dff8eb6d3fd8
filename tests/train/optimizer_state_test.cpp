// SPDX-License-Identifier: Apache-2.0
// Moments in bf16 (optimizer.state) on every axis and with sharded state, also with learning rates
// by parameter.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>

#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;
using test::world;

constexpr int kStateSteps = 6;

std::vector<std::vector<std::string>> state_layouts(int ranks) {
  const std::string n = std::to_string(ranks);
  const std::string mup = "model.mup_base_width=8";
  if (ranks == 1) return {{}, {"optimizer.cautious_decay=true"}, {mup}};
  std::vector<std::vector<std::string>> all = {
      {"parallel.data=" + n},
      {"parallel.data=" + n, "parallel.zero=2", mup},
      {"parallel.tensor=" + n, "model.tie_embeddings=false", mup},
      {"parallel.pipeline=" + n}};
  if (ranks == 4) all.push_back({"parallel.data=2", "parallel.tensor=2", "parallel.zero=1"});
  return all;
}

train::Config config_of(std::vector<std::string> overrides, const std::string& state) {
  overrides.emplace_back("train.microbatch=1");
  overrides.push_back("optimizer.state=" + state);
  return small_config(overrides, world().size());
}

using Values = std::map<std::string, std::vector<float>>;  // by tensor and part

Values slabs_of(train::Trainer& trainer) {
  Values values;
  for (const io::Slab& slab : trainer.state().slabs()) {
    const auto data = slab.data.flat().span<float>();
    values[slab.tensor + slab.part.offset.str()] = {data.begin(), data.end()};
  }
  return values;
}

bool is_bf16(float value) { return (std::bit_cast<std::uint32_t>(value) & 0xFFFFU) == 0; }

TEST(MomentsInBf16, TrainAsThoseInFp32InLessMemory) {
  for (const auto& layout : state_layouts(world().size())) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const train::Config narrow = config_of(layout, "bf16");
    const train::Config wide = config_of(layout, "fp32");
    const auto mesh = train::make_mesh(world(), narrow, Device::cpu);
    const auto other = train::make_mesh(world(), wide, Device::cpu);
    test::SmallRun in_bf16(narrow, *mesh, world().rank());
    test::SmallRun in_fp32(wide, *other, world().rank());
    for (int step = 1; step <= kStateSteps; ++step) {
      EXPECT_NEAR(in_bf16.step(step), in_fp32.step(step), 2e-3) << step;
    }
    const std::size_t saved = in_fp32.plan().memory.optimizer - in_bf16.plan().memory.optimizer;
    EXPECT_NEAR(static_cast<double>(saved) / static_cast<double>(in_fp32.plan().memory.optimizer),
                0.5, 0.03);
    EXPECT_EQ(in_bf16.trainer().inspection().memory_plan().optimizer,
              in_bf16.plan().memory.optimizer);
    bool differs = false;
    for (const auto& [name, values] : slabs_of(in_bf16.trainer())) {
      if (!name.starts_with("optimizer/")) continue;
      for (const float value : values) {
        ASSERT_TRUE(is_bf16(value)) << name;
        differs = differs || value != 0;
      }
    }
    EXPECT_TRUE(differs);
  }
}

TEST(MomentsInBf16, GoOnFromACheckpointBitForBit) {
  for (const auto& layout : state_layouts(world().size())) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const train::Config config = config_of(layout, "bf16");
    const auto mesh = train::make_mesh(world(), config, Device::cpu);
    test::SmallRun whole(config, *mesh, world().rank());
    const test::TempFolder folder;  // the first rank's is used
    const std::string path = world().broadcast(folder.path());
    Values at_three;
    for (int step = 1; step <= kStateSteps; ++step) {
      whole.step(step);
      if (step != 3) continue;
      whole.trainer().state().wait_all();
      io::CheckpointMeta meta;
      meta.step = step;
      whole.trainer().state().fill_meta(meta);
      at_three = slabs_of(whole.trainer());
      io::save_checkpoint(world(), path, meta, whole.trainer().state().slabs());
    }
    test::SmallRun resumed(config, *mesh, world().rank());
    resumed.trainer().state().load(io::CheckpointReader(path));
    resumed.trainer().state().share_values();
    for (int step = 4; step <= kStateSteps; ++step) resumed.step(step);
    EXPECT_EQ(slabs_of(resumed.trainer()), slabs_of(whole.trainer()));

    const train::Config in_fp32 = config_of(layout, "fp32");
    const auto other = train::make_mesh(world(), in_fp32, Device::cpu);
    test::SmallRun widened(in_fp32, *other, world().rank());
    widened.trainer().state().load(io::CheckpointReader(path));
    EXPECT_EQ(slabs_of(widened.trainer()), at_three) << "a run may change how it keeps them";
    world().barrier();
  }
}

}  // namespace
}  // namespace hyperslab
