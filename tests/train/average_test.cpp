// SPDX-License-Identifier: Apache-2.0
// The exponential moving average of the weights, on every axis and with sharded state.
#include <gtest/gtest.h>

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

constexpr int kAveragedSteps = 6;
constexpr double kDecay = 0.75;
constexpr int kStart = 1;

std::vector<std::vector<std::string>> layouts(int ranks) {
  const std::string n = std::to_string(ranks);
  if (ranks == 1) return {{}, {"optimizer.name=sgd"}, {"optimizer.name=muon"}};
  std::vector<std::vector<std::string>> all = {
      {"parallel.data=" + n},
      {"parallel.data=" + n, "parallel.zero=1"},
      {"parallel.data=" + n, "parallel.zero=2", "optimizer.name=muon"},
      {"parallel.tensor=" + n, "model.tie_embeddings=false"},
      {"parallel.pipeline=" + n}};
  if (ranks == 4) all.push_back({"parallel.data=2", "parallel.tensor=2", "parallel.zero=1"});
  return all;
}

train::Config config_of(std::vector<std::string> overrides, bool averages, int ranks) {
  overrides.emplace_back("train.microbatch=1");
  if (averages) {
    overrides.push_back("optimizer.ema_decay=" + std::to_string(kDecay));
    overrides.push_back("optimizer.ema_start_step=" + std::to_string(kStart));
  }
  return small_config(overrides, ranks);
}

using Values = std::map<std::string, std::vector<float>>;  // by tensor and part

/// This rank's slabs of tensors whose names begin so.
Values slabs_of(train::Trainer& trainer, const std::string& prefix) {
  Values values;
  for (const io::Slab& slab : trainer.state().slabs()) {
    if (!slab.tensor.starts_with(prefix)) continue;
    const auto data = slab.data.flat().span<float>();
    values[slab.tensor.substr(prefix.size()) + slab.part.offset.str()] = {data.begin(), data.end()};
  }
  return values;
}

const std::string kModel = "model/";
const std::string kAverage = "optimizer/ema/";

TEST(AveragedWeights, AreTheirDefinitionOnEveryLayout) {
  for (const auto& layout : layouts(world().size())) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const train::Config config = config_of(layout, true, world().size());
    const auto mesh = train::make_mesh(world(), config, Device::cpu);
    test::SmallRun run(config, *mesh, world().rank());
    std::map<std::string, std::vector<double>> expected;
    for (int step = 1; step <= kAveragedSteps; ++step) {
      run.step(step);
      run.trainer().state().wait_all();
      const Values averages = slabs_of(run.trainer(), kAverage);
      const Values weights = slabs_of(run.trainer(), kModel);
      ASSERT_EQ(averages.size(), weights.size());
      for (const auto& [name, values] : weights) {
        std::vector<double>& mean = expected[name];
        mean.resize(values.size());
        ASSERT_EQ(averages.at(name).size(), values.size()) << name;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto value = static_cast<double>(values[i]);
          mean[i] = step <= kStart + 1 ? value : kDecay * mean[i] + (1 - kDecay) * value;
          ASSERT_NEAR(averages.at(name)[i], mean[i], 1e-6) << name << " step " << step;
        }
      }
    }
  }
}

/// A run with an average trains as one without, and looking at the average changes nothing.
TEST(AveragedWeights, ChangeNothingOfTheTraining) {
  for (const auto& layout : layouts(world().size())) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const train::Config plain = config_of(layout, false, world().size());
    const train::Config averaged = config_of(layout, true, world().size());
    const auto mesh = train::make_mesh(world(), plain, Device::cpu);
    const auto other = train::make_mesh(world(), averaged, Device::cpu);
    test::SmallRun without(plain, *mesh, world().rank());
    test::SmallRun with(averaged, *other, world().rank());
    for (int step = 1; step <= kAveragedSteps; ++step) {
      EXPECT_EQ(with.step(step), without.step(step)) << step;
      const Values weights = slabs_of(with.trainer(), kModel);
      const Values averages = slabs_of(with.trainer(), kAverage);
      with.trainer().state().exchange_averages();
      EXPECT_EQ(slabs_of(with.trainer(), kModel), averages);
      EXPECT_EQ(slabs_of(with.trainer(), kAverage), weights);
      with.trainer().state().exchange_averages();
      EXPECT_EQ(slabs_of(with.trainer(), kModel), weights);
    }
    EXPECT_EQ(slabs_of(with.trainer(), kModel), slabs_of(without.trainer(), kModel));
    EXPECT_EQ(with.plan().memory.optimizer > without.plan().memory.optimizer, true);
    EXPECT_EQ(with.trainer().inspection().memory_plan().optimizer, with.plan().memory.optimizer);
  }
}

TEST(AveragedWeights, GoOnFromACheckpoint) {
  for (const auto& layout : layouts(world().size())) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const train::Config config = config_of(layout, true, world().size());
    const auto mesh = train::make_mesh(world(), config, Device::cpu);
    test::SmallRun whole(config, *mesh, world().rank());
    const test::TempFolder folder;  // the first rank's is used
    const std::string path = world().broadcast(folder.path());
    for (int step = 1; step <= kAveragedSteps; ++step) {
      whole.step(step);
      if (step != 3) continue;
      whole.trainer().state().wait_all();
      io::CheckpointMeta meta;
      meta.step = step;
      whole.trainer().state().fill_meta(meta);
      io::save_checkpoint(world(), path, meta, whole.trainer().state().slabs());
    }
    test::SmallRun resumed(config, *mesh, world().rank());
    resumed.trainer().state().load(io::CheckpointReader(path));
    resumed.trainer().state().share_values();
    const Values at_three = slabs_of(resumed.trainer(), kAverage);
    for (int step = 4; step <= kAveragedSteps; ++step) resumed.step(step);
    EXPECT_EQ(slabs_of(resumed.trainer(), kAverage), slabs_of(whole.trainer(), kAverage));

    io::CheckpointReader averages(path);
    averages.use_averages();
    test::SmallRun started(config, *mesh, world().rank());
    started.trainer().state().load_parameters(averages);
    EXPECT_EQ(slabs_of(started.trainer(), kModel), at_three);
    EXPECT_EQ(slabs_of(started.trainer(), kAverage), at_three) << "it begins with the weights";
    world().barrier();
  }
}

TEST(AveragedWeights, BeginWithTheWeightsOfACheckpointThatHasNone) {
  const std::string data = "parallel.data=" + std::to_string(world().size());
  const train::Config plain = config_of({data, "parallel.zero=1"}, false, world().size());
  const train::Config averaged = config_of({data, "parallel.zero=1"}, true, world().size());
  const auto mesh = train::make_mesh(world(), plain, Device::cpu);
  test::SmallRun without(plain, *mesh, world().rank());
  for (int step = 1; step <= 3; ++step) without.step(step);
  without.trainer().state().wait_all();
  const test::TempFolder folder;  // the first rank's is used
  const std::string path = world().broadcast(folder.path());
  io::CheckpointMeta meta;
  meta.step = 3;
  without.trainer().state().fill_meta(meta);
  io::save_checkpoint(world(), path, meta, without.trainer().state().slabs());

  test::SmallRun with(averaged, *mesh, world().rank());
  with.trainer().state().load(io::CheckpointReader(path));
  with.trainer().state().share_values();
  EXPECT_EQ(slabs_of(with.trainer(), kAverage), slabs_of(without.trainer(), kModel));
  io::CheckpointReader reader(path);
  EXPECT_THROW(reader.use_averages(), Error);
  world().barrier();
}

}  // namespace
}  // namespace hyperslab
