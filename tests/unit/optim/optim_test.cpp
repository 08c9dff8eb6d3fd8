// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hyperslab/optim/adamw.hpp"
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
  EXPECT_TRUE(decays(config, nn::ParamKind::matrix));
  EXPECT_TRUE(decays(config, nn::ParamKind::token_table));
  EXPECT_FALSE(decays(config, nn::ParamKind::norm));
  EXPECT_FALSE(decays(config, nn::ParamKind::bias));
  config.decay_embeddings = false;
  EXPECT_FALSE(decays(config, nn::ParamKind::token_table));
  EXPECT_FALSE(decays(config, nn::ParamKind::position_table));
}

TEST(AdamW, TableOfDecaysFollowsTheParameters) {
  nn::ParamTable table;
  table.begin_unit();
  table.declare({"matrix", {5, 7}, nn::ParamKind::matrix, nn::Init::normal, 0.1F});
  table.declare({"norm", {7}, nn::ParamKind::norm, nn::Init::ones, 0});
  table.begin_unit();
  table.declare({"other", {3, 3}, nn::ParamKind::matrix, nn::Init::normal, 0.1F});
  table.lay_out(2, 1 << 20);
  Context ctx(Device::cpu);
  Arena arena("parameters", Device::cpu, 8192);
  table.bind(arena, &arena, DType::f32, DType::f32, {});

  const AdamW adamw(OptimizerConfig(), table, arena);

  adamw.initialize(ctx);

  // 35 elements take two granules, 7 take one, 9 take one; the rest of the bucket is padding.
  const auto decay = adamw.decay().span<float>();
  const std::vector<float> wanted = {0.1F, 0.1F, 0.0F, 0.1F};
  EXPECT_EQ(std::vector<float>(decay.begin(), decay.begin() + 4), wanted);
  for (std::size_t i = 4; i < decay.size(); ++i) EXPECT_EQ(decay[i], 0.0F);
}

}  // namespace
}  // namespace hyperslab::optim
