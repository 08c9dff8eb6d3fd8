// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "hyperslab/optim/optimizer.hpp"
#include "hyperslab/optim/schedule.hpp"

namespace hyperslab::optim {
namespace {

ScheduleConfig schedule(ScheduleKind name, std::int64_t warmup, double final_fraction) {
  ScheduleConfig config;
  config.name = name;
  config.warmup_steps = warmup;
  config.final_fraction = final_fraction;
  return config;
}

TEST(Schedule, WarmsUpInAStraightLine) {
  for (const ScheduleKind name :
       {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const ScheduleConfig config = schedule(name, 10, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 1, 100), 0.2) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 5, 100), 1.0) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 10, 100), 2.0) << static_cast<int>(name);
  }
}

TEST(Schedule, EndsExactlyAtTheLastStep) {
  for (const ScheduleKind name : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    const ScheduleConfig config = schedule(name, 10, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(config, 2.0, 100, 100), 0.2) << static_cast<int>(name);
    EXPECT_GT(learning_rate(config, 2.0, 99, 100), 0.2) << static_cast<int>(name);
  }
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::constant, 10, 0.1), 2.0, 100, 100), 2.0);
}

TEST(Schedule, HandValuesHalfWay) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::linear, 0, 0.0), 1.0, 50, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::cosine, 0, 0.0), 1.0, 50, 100), 0.5);
  EXPECT_NEAR(learning_rate(schedule(ScheduleKind::cosine, 0, 0.0), 1.0, 25, 100),
              0.5 * (1 + std::cos(M_PI / 4)), 1e-15);
  // The last fifth of 100 steps decays: nothing until 80, half at 90.
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::wsd, 0, 0.0), 1.0, 80, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::wsd, 0, 0.0), 1.0, 90, 100), 0.5);
}

TEST(Schedule, WarmUpOverTheWholeRunReachesThePeak) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleKind::constant, 100, 0.1), 1.0, 100, 100), 1.0);
}

TEST(Decay, ActsOnMatricesAndByChoiceOnTables) {
  OptimizerConfig config;
  EXPECT_TRUE(decays(config, param::Role::matrix));
  EXPECT_TRUE(decays(config, param::Role::embedding));
  EXPECT_FALSE(decays(config, param::Role::norm));
  EXPECT_FALSE(decays(config, param::Role::bias));
  config.decay_embeddings = false;
  EXPECT_FALSE(decays(config, param::Role::embedding));
  EXPECT_FALSE(decays(config, param::Role::embedding));
}

/// A small group with its optimizer.
class Optimized {
 public:
  explicit Optimized(OptimizerKind name) {
    store_.begin_unit();
    store_.declare({"matrix", {5, 7}, param::Role::matrix, param::Init::normal, 0.1F});
    store_.declare({"norm", {7}, param::Role::norm, param::Init::ones, 0});
    store_.begin_unit();
    store_.declare({"other", {3, 3}, param::Role::matrix, param::Init::normal, 0.1F});
    store_.lay_out(1 << 20);
    const Dim size = store_.trained().flat_size();
    const param::StateView masters = {arena_.take(DType::f32, {size}, "masters")};
    store_.trained().bind({.master = masters, .value = masters, .gradients = {}});
    OptimizerConfig config;
    config.name = name;
    optimizer = make_optimizer(config, store_.trained(), false, arena_);
    optimizer->initialize(ctx_);
  }
  std::unique_ptr<Optimizer> optimizer;

 private:
  param::ParamStore store_;
  Context ctx_{Device::cpu};
  Arena arena_{"parameters", Device::cpu, 8192};
};

TEST(Optimizer, TableOfDecaysFollowsTheParameters) {
  const Optimized adamw(OptimizerKind::adamw);

  // 35 elements take two granules, 7 take one, 9 take one; the rest of the bucket is padding.
  const auto decay = adamw.optimizer->decay().data.span<float>();
  const std::vector<float> expected = {0.1F, 0.1F, 0.0F, 0.1F};
  EXPECT_EQ(std::vector<float>(decay.begin(), decay.begin() + 4), expected);
  for (std::size_t i = 4; i < decay.size(); ++i) EXPECT_EQ(decay[i], 0.0F);
}

TEST(Optimizer, NamesItsStateAsPyTorchDoes) {
  const auto names = [](OptimizerKind optimizer) {
    std::vector<std::string> out;
    for (const Optimizer::State& state : Optimized(optimizer).optimizer->state()) {
      out.push_back(state.name);
      EXPECT_FALSE(state.values.sharded);
    }
    return out;
  };
  EXPECT_EQ(names(OptimizerKind::adamw), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(OptimizerKind::sgd), (std::vector<std::string>{"momentum_buffer"}));
}

}  // namespace
}  // namespace hyperslab::optim
