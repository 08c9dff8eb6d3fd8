// SPDX-License-Identifier: Apache-2.0
// The timeline of memory reports what the arenas hold, and when it is in use.
#include "hyperslab/train/memory_timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using io::AllocationLife;
using test::small_config;
using test::SmallRun;
using test::world;

std::vector<AllocationLife> of(const std::vector<AllocationLife>& lives,
                               const std::string& category) {
  std::vector<AllocationLife> found;
  std::ranges::copy_if(lives, std::back_inserter(found),
                       [&](const AllocationLife& life) { return life.category == category; });
  return found;
}

/// Most bytes in use at a time. What ends when something else begins is not in use beside it.
std::int64_t peak_of(const std::vector<AllocationLife>& lives) {
  std::map<double, std::int64_t> changes;
  for (const AllocationLife& life : lives) {
    changes[life.start_seconds] += life.bytes;
    changes[life.end_seconds] -= life.bytes;
  }
  std::int64_t now = 0;
  std::int64_t peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

/// Lives of a traced step, after one that is not.
std::vector<AllocationLife> trace(SmallRun& run) {
  run.step(1);
  EXPECT_TRUE(run.trainer().inspection().allocation_lives().empty());
  train::Trainer::StepArgs args;
  args.step = 2;
  args.learning_rate = 1e-3;
  args.traced = true;
  run.trainer().step(args);
  (void)run.trainer().result(2);
  return run.trainer().inspection().allocation_lives();
}

class MemoryTimeline : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(MemoryTimeline, PeaksAreWhatTheArenasHold) {
  std::vector<std::string> settings = GetParam();
  settings.emplace_back(world().size() == 1 ? "parallel.pipeline=1" : "parallel.pipeline=2");
  settings.emplace_back("model.layers=4");
  const train::Config config = small_config(settings, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  const model::MemoryPlan held = run.trainer().inspection().memory_plan();

  const std::vector<AllocationLife> lives = trace(run);

  const auto bytes = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  EXPECT_EQ(peak_of(of(lives, "parameters")), bytes(held.parameters));
  EXPECT_EQ(peak_of(of(lives, "gradients")), bytes(held.gradients));
  EXPECT_EQ(peak_of(of(lives, "optimizer")), bytes(held.optimizer));
  EXPECT_EQ(peak_of(of(lives, "activations")), bytes(held.activations));
  EXPECT_EQ(peak_of(of(lives, "workspace")), bytes(held.scratch + held.workspace));
  EXPECT_EQ(peak_of(lives), bytes(held.total()));
  for (const AllocationLife& life : lives) EXPECT_GE(life.end_seconds, life.start_seconds);
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, MemoryTimeline,
    testing::Values(std::vector<std::string>{"parallel.schedule=gpipe"},
                    std::vector<std::string>{"parallel.schedule=1f1b"},
                    std::vector<std::string>{"parallel.schedule=1f1b", "memory.recompute=full"},
                    std::vector<std::string>{"parallel.schedule=1f1b",
                                             "memory.recompute=selective"},
                    std::vector<std::string>{"parallel.schedule=zero_bubble"}));

TEST(MemoryTimelineOfARank, LayersComeInForwardAndGoInBackward) {
  const std::string layout = "parallel.data=" + std::to_string(world().size());
  const train::Config config = small_config({layout, "train.microbatch=6"}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());

  const std::vector<AllocationLife> lives = trace(run);

  const auto life_of = [&](const std::string& label) {
    const auto found = std::ranges::find(lives, label, &AllocationLife::label);
    EXPECT_NE(found, lives.end()) << label;
    return found == lives.end() ? AllocationLife{} : *found;
  };
  const AllocationLife first = life_of("blocks.0.attention.qkv");
  const AllocationLife last = life_of("blocks.2.attention.qkv");
  const AllocationLife gradients = life_of("gradients");
  EXPECT_EQ(first.layer, 0);
  EXPECT_EQ(last.layer, 2);
  EXPECT_EQ(gradients.layer, -1);
  EXPECT_LT(first.start_seconds, last.start_seconds);
  EXPECT_LT(last.end_seconds, first.end_seconds);
  EXPECT_GT(gradients.start_seconds, last.start_seconds);
  EXPECT_GT(gradients.end_seconds, first.end_seconds);
  EXPECT_GE(life_of("tokens").end_seconds, first.end_seconds);
  // The microbatches of a step use the slot one after the other.
  const auto uses = std::ranges::count(lives, "tokens", &AllocationLife::label);
  EXPECT_EQ(uses, 2 / world().size());
  const auto spans = run.trainer().inspection().memory_timeline().spans(0);
  EXPECT_EQ(spans.front().name, "forward");
  EXPECT_EQ(spans.back().name, "optimizer");
}

TEST(MemoryTimelineOfARank, ForwardAloneHasNoGradients) {
  const std::string layout = "parallel.data=" + std::to_string(world().size());
  const train::Config config = small_config({layout}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  options.training = false;
  SmallRun run(config, mesh, world().rank(), options);
  train::Trainer::StepArgs args;
  args.traced = true;
  run.fill_slots();

  run.trainer().forward(args);
  const std::vector<AllocationLife> lives = run.trainer().inspection().allocation_lives();

  EXPECT_TRUE(of(lives, "gradients").empty());
  EXPECT_TRUE(of(lives, "optimizer").empty());
  EXPECT_EQ(peak_of(of(lives, "parameters")),
            static_cast<std::int64_t>(run.trainer().inspection().memory_plan().parameters));
  EXPECT_GT(peak_of(of(lives, "activations")), 0);
}

}  // namespace
}  // namespace hyperslab
