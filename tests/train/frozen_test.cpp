// SPDX-License-Identifier: Apache-2.0
// A deck that trains only norms and biases: what the rest has, does and costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::SmallRun;
using test::world;

const std::vector<std::string> kNormsAndBiases = {"train.trainable=[norm, bias]"};

class Frozen : public testing::Test {
 protected:
  Frozen()
      : config_(test::small_config(kNormsAndBiases, 1)),
        mesh_(world(), Device::cpu, config_.parallel, config_.groups()) {}
  [[nodiscard]] SmallRun make_run() {
    train::TrainerOptions options;
    options.canary = true;
    return {config_, mesh_, 0, options};
  }

  train::Config config_;
  mesh::Mesh mesh_;
};

bool is_trained(const param::Param& param) {
  return param.role == param::Role::norm || param.role == param::Role::bias;
}

std::vector<float> values_of(const param::Param& param) {
  const auto values = param.value.span<float>();
  return {values.begin(), values.end()};
}

TEST_F(Frozen, ParametersHaveNoGradientMasterOrState) {
  SmallRun run = make_run();
  const param::ParamStore& params = run.trainer().stage().params();

  std::size_t frozen = 0;
  for (const param::Param& param : params.params()) {
    EXPECT_EQ(static_cast<bool>(param.gradient), is_trained(param)) << param.name;
    EXPECT_EQ(static_cast<bool>(param.master), is_trained(param)) << param.name;
    frozen += is_trained(param) ? 0 : 1;
  }
  EXPECT_EQ(params.frozen().params().size(), frozen);
  EXPECT_GT(frozen, 0U);
}

TEST_F(Frozen, ParametersStayAndTheOthersMove) {
  SmallRun run = make_run();
  const std::deque<param::Param>& params = run.trainer().stage().params().params();
  std::vector<std::vector<float>> before;
  for (const param::Param& param : params) before.push_back(values_of(param));

  for (int step = 1; step <= 4; ++step) run.step(step);

  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].name.ends_with("key.bias")) continue;  // its gradient is zero in theory
    EXPECT_EQ(values_of(params[i]) == before[i], !is_trained(params[i])) << params[i].name;
  }
}

/// The whole model begins with the same weights, whichever of them are trained.
TEST_F(Frozen, ParametersBeginAsInTraining) {
  SmallRun frozen = make_run();
  SmallRun all(test::small_config({}, 1), mesh_, 0);
  const std::deque<param::Param>& expected = all.trainer().stage().params().params();
  const std::deque<param::Param>& found = frozen.trainer().stage().params().params();

  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(values_of(found[i]), values_of(expected[i])) << found[i].name;
  }
}

TEST_F(Frozen, MemoryIsThatOfThePlanAndOfTheTrainedAlone) {
  SmallRun run = make_run();
  run.step(1);

  const model::Arenas& arenas = run.trainer().arenas();
  const model::MemoryPlan& plan = run.plan().memory;
  EXPECT_EQ(arenas.parameters.highest_touched(), plan.parameters);
  EXPECT_EQ(arenas.gradients.highest_touched(), plan.gradients);
  EXPECT_EQ(arenas.optimizer.highest_touched(), plan.optimizer);
  const auto trained =
      static_cast<std::size_t>(run.trainer().stage().params().trained().flat_size());
  const std::size_t alignment = 4096;
  EXPECT_GE(plan.gradients, trained * 4);
  EXPECT_LT(plan.gradients, trained * 4 + alignment);
  EXPECT_GE(plan.optimizer, trained * (2 * 4) + trained / ops::kDecayGranule * 4);
  EXPECT_LT(plan.optimizer, trained * (2 * 4) + trained / ops::kDecayGranule * 4 + 3 * alignment);
}

TEST_F(Frozen, CheckpointsHoldTheWholeModelAndTheStateOfTheTrained) {
  SmallRun run = make_run();
  for (int step = 1; step <= 3; ++step) run.step(step);
  const test::TempFolder folder;
  io::CheckpointMeta meta;
  meta.step = 3;
  run.trainer().state().fill_meta(meta);
  io::save_checkpoint(world(), folder.path(), meta, run.trainer().state().slabs());
  const io::CheckpointReader reader(folder.path());

  std::set<std::string> with_moments;
  std::size_t of_the_model = 0;
  for (const auto& [name, entry] : reader.tensors()) {
    if (name.starts_with("model/")) ++of_the_model;
    const std::string prefix = "optimizer/exp_avg/";
    if (name.starts_with(prefix)) with_moments.insert(name.substr(prefix.size()));
  }
  const std::deque<param::Param>& params = run.trainer().stage().params().params();
  EXPECT_EQ(of_the_model, params.size());
  for (const param::Param& param : params) {
    EXPECT_EQ(with_moments.contains(param.name), is_trained(param)) << param.name;
  }

  train::Config other_seed = config_;
  other_seed.run.seed = 99;
  SmallRun resumed(other_seed, mesh_, 0);
  resumed.trainer().state().load(reader);
  const std::deque<param::Param>& loaded = resumed.trainer().stage().params().params();
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_EQ(values_of(loaded[i]), values_of(params[i])) << params[i].name;
  }
}

}  // namespace
}  // namespace hyperslab
