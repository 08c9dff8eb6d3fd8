// SPDX-License-Identifier: Apache-2.0
// Waiting for a slow rank is told apart from reductions of gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;
using test::SmallRun;
using test::world;

constexpr double kSleepSeconds = 0.3;
constexpr int kWaitingSteps = 6;

/// Progress that takes long once in every backward pass.
class Sleeper final : public Background {
 public:
  Sleeper(Recorder& recorder, Background& other) : recorder_(recorder), other_(other) {}
  void progress() override {
    other_.progress();
    if (recorder_.phase() != Phase::backward || recorder_.step() == slept_) return;
    slept_ = recorder_.step();
    std::this_thread::sleep_for(std::chrono::duration<double>(kSleepSeconds));
  }

 private:
  Recorder& recorder_;
  Background& other_;
  std::int64_t slept_ = 0;
};

/// What steps took, least and most of each part: a machine that others use, too, only adds to some.
struct Extremes {
  StepTimes least;
  StepTimes most;
};

Extremes steps_of(SmallRun& run) {
  Extremes found;
  for (int step = 1; step <= kWaitingSteps; ++step) {
    run.step(step);
    const StepTimes times = run.trainer().inspection().times(step);
    const auto& parts = times.phase_seconds;
    EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), times.step_seconds, 1e-9);
    EXPECT_LE(times.phase(Phase::reduce_exposed), times.reduce_busy_seconds * (1 + 1e-9));
    if (step == 1) found = {times, times};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_GE(parts[i], 0) << name_of(static_cast<Phase>(i));
      found.least.phase_seconds[i] = std::min(found.least.phase_seconds[i], parts[i]);
      found.most.phase_seconds[i] = std::max(found.most.phase_seconds[i], parts[i]);
    }
    found.most.reduce_busy_seconds =
        std::max(found.most.reduce_busy_seconds, times.reduce_busy_seconds);
  }
  return found;
}

class OneSlowRank : public testing::TestWithParam<const char*> {};

TEST_P(OneSlowRank, IsTheOthersWaitingAndNotTheirReductions) {
  const train::Config config =
      small_config({"parallel.data=2", GetParam(), "train.microbatch=3"}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  Context& ctx = run.trainer().context();
  const bool slow = world().rank() == 1;
  Sleeper sleeper(ctx.recorder(), mesh.group(mesh::kWorld));
  if (slow) ctx.set_background(&sleeper);

  const auto [least, most] = steps_of(run);

  EXPECT_LT(least.phase(Phase::reduce_exposed), 0.5 * kSleepSeconds);
  if (slow) {
    EXPECT_GE(least.phase(Phase::backward), kSleepSeconds);
    EXPECT_LT(least.phase(Phase::wait), 0.5 * kSleepSeconds);
  } else {
    EXPECT_GT(most.phase(Phase::wait), 0.7 * kSleepSeconds);
    EXPECT_LT(least.phase(Phase::backward), 0.5 * kSleepSeconds);
  }
  EXPECT_GT(most.reduce_busy_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Zero, OneSlowRank,
                         testing::Values("parallel.zero=0", "parallel.zero=1", "parallel.zero=2"));

TEST(Waiting, TheSlowRankComesLastToItsGroup) {
  const train::Config config =
      small_config({"parallel.data=2", "train.microbatch=3"}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());
  Context& ctx = run.trainer().context();
  Sleeper sleeper(ctx.recorder(), mesh.group(mesh::kWorld));
  if (world().rank() == 1) ctx.set_background(&sleeper);
  const std::vector<io::GroupInfo> groups = run.trainer().inspection().groups();
  const auto data = std::ranges::find(groups, comm::GroupRole::data, &io::GroupInfo::role);
  ASSERT_NE(data, groups.end());
  EXPECT_EQ(data->ranks, (std::vector<int>{0, 1}));
  const auto arrival = [&](int step) {
    run.step(step);
    return run.trainer()
        .inspection()
        .traffic(step)[static_cast<std::size_t>(data - groups.begin())]
        .arrival_seconds;
  };

  EXPECT_TRUE(std::isnan(arrival(1))) << "before the ranks have met";
  double late = kSleepSeconds;
  for (int step = 2; step <= kWaitingSteps; ++step) {
    const double sign = world().rank() == 1 ? 1 : -1;
    late = std::min(late, world().sum(sign * arrival(step)));
  }

  EXPECT_GT(late, 0.7 * kSleepSeconds);
}

TEST(Waiting, AStepThatReducesNoGradientsHasNoTimeOfReductions) {
  const train::Config config = small_config(
      {"parallel.pipeline=2", "model.tie_embeddings=false", "model.layers=4"}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());

  const StepTimes most = steps_of(run).most;

  EXPECT_EQ(most.phase(Phase::reduce_exposed), 0);
  EXPECT_EQ(most.reduce_busy_seconds, 0);
  EXPECT_GT(most.phase(Phase::wait), 0);
}

TEST(Waiting, TheTwoEndsOfATiedTableReduceGradients) {
  const train::Config config = small_config(
      {"parallel.pipeline=2", "model.tie_embeddings=true", "model.layers=4"}, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  SmallRun run(config, mesh, world().rank());

  EXPECT_GT(steps_of(run).most.reduce_busy_seconds, 0);
}

}  // namespace
}  // namespace hyperslab
