// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "support/tensors.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;
using test::SmallRun;

std::vector<float> weights(train::Trainer& trainer) {
  const auto master = trainer.stage().params().trained().master().data.span<float>();
  return {master.begin(), master.end()};
}

TEST(Trainer, LossFalls) {
  const train::Config config = small_config({}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun run(config, mesh, 0);

  const double first = run.step(1);
  double last = 0;
  for (int step = 2; step <= 60; ++step) last = run.step(step);

  EXPECT_NEAR(first, std::log(67.0), 0.05);
  EXPECT_LT(last, first - 0.5);
}

TEST(Trainer, TheSameRunGivesTheSameBits) {
  const train::Config config = small_config({"model.dropout=0.1"}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun a(config, mesh, 0);
  SmallRun b(config, mesh, 0);
  for (int step = 1; step <= 5; ++step) EXPECT_EQ(a.step(step), b.step(step));

  EXPECT_EQ(weights(a.trainer()), weights(b.trainer()));
}

/// How a batch is cut into microbatches changes sums only by rounding; dropout masks depend on the
/// position in the global batch alone.
TEST(Trainer, MicrobatchesDoNotChangeTheCurve) {
  for (const char* dropout : {"model.dropout=0", "model.dropout=0.2"}) {
    const train::Config one = small_config({"train.microbatch=12", dropout}, 1);
    const train::Config many = small_config({"train.microbatch=1", dropout}, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(one.parallel, 0);
    SmallRun a(one, mesh, 0);
    SmallRun b(many, mesh, 0);
    for (int step = 1; step <= 10; ++step) {
      const double loss = a.step(step);
      EXPECT_NEAR(b.step(step), loss, 1e-5 * loss) << dropout << " step " << step;
    }
  }
}

TEST(Trainer, TouchesExactlyThePlannedMemory) {
  const std::vector<std::vector<std::string>> decks = {
      {"model.family=gpt2"},
      {"model.family=llama"},
      {"model.family=llama", "memory.recompute=full", "memory.mlp_rows=7", "memory.loss_rows=5"}};
  for (std::vector<std::string> deck : decks) {
    deck.emplace_back("model.dropout=0.1");
    const train::Config config = small_config(deck, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
    train::TrainerOptions options;
    options.canary = true;
    SmallRun run(config, mesh, 0, options);
    run.step(1);

    const model::Arenas& arenas = run.trainer().arenas();
    const model::MemoryPlan& plan = run.plan().memory;
    EXPECT_EQ(arenas.parameters.highest_touched(), plan.parameters);
    EXPECT_EQ(arenas.gradients.highest_touched(), plan.gradients);
    EXPECT_EQ(arenas.optimizer.highest_touched(), plan.optimizer);
    EXPECT_EQ(arenas.activations.highest_touched(), plan.activations);
    EXPECT_EQ(arenas.scratch.highest_touched(), plan.scratch);
    EXPECT_EQ(run.trainer().inspection().memory().peak_bytes() +
                  static_cast<std::int64_t>(plan.workspace),
              static_cast<std::int64_t>(plan.total()));
  }
}

TEST(Trainer, ForwardOnlyPlansNoGradientsAndNoOptimizerState) {
  const train::Config config = small_config({}, 1);
  train::TrainerOptions options;
  options.training = false;

  const plan::Plan plan = plan::make_plan(config, options, 0);

  EXPECT_EQ(plan.memory.gradients, 0U);
  EXPECT_EQ(plan.memory.optimizer, 0U);
  EXPECT_LT(plan.memory.activations, plan::make_plan(config, {}, 0).memory.activations / 2);
}

TEST(Trainer, NonFiniteGradientsSkipTheStepEverywhere) {
  const train::Config config = small_config({}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun run(config, mesh, 0);
  run.step(1);
  // A NaN in the final norm reaches every gradient, but not the loss-free optimizer state.
  const param::Param* norm = nullptr;
  for (const param::Param& param : run.trainer().stage().params().params()) {
    if (param.name == "final_norm.weight") norm = &param;
  }
  ASSERT_NE(norm, nullptr);
  float& weight = norm->master.data<float>()[0];
  const float kept = weight;
  weight = std::nanf("");
  const std::vector<float> before = weights(run.trainer());

  run.step(2);

  EXPECT_EQ(run.trainer().result(2).skipped, 1);
  EXPECT_EQ(run.trainer().state().step_state().adam_step, 1);
  const std::vector<float> after = weights(run.trainer());
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  weight = kept;
  EXPECT_TRUE(std::isfinite(run.step(3)));
  EXPECT_EQ(run.trainer().state().step_state().adam_step, 2);
}

/// Every element of every tensor is in exactly one slab of the data group.
TEST(Slabs, PartitionEveryTensorOverTheReplicas) {
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string data = "parallel.data=" + std::to_string(ranks);
    const train::Config config = small_config({data, "train.microbatch=1"}, ranks);
    std::map<std::string, Dim> covered;
    std::vector<Dim> bytes;
    for (int rank = 0; rank < ranks; ++rank) {
      const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, rank);
      SmallRun run(config, mesh, rank);
      Dim mine = 0;
      for (const io::Slab& slab : run.trainer().state().slabs()) {
        covered[slab.tensor] += slab.part.count.numel();
        mine += slab.part.count.numel();
      }
      bytes.push_back(mine);
    }
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
    SmallRun run(config, mesh, 0);
    std::size_t tensors = 0;
    for (const param::Param& param : run.trainer().stage().params().params()) {
      for (const char* prefix : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
        EXPECT_EQ(covered.at(prefix + param.name), param.numel()) << prefix << param.name;
        ++tensors;
      }
    }
    EXPECT_EQ(covered.size(), tensors);
    const auto [least, most] = std::ranges::minmax(bytes);
    EXPECT_LE(most - least, most / 10 + 400) << ranks << " ranks";  // padding is not written
  }
}

}  // namespace
}  // namespace hyperslab
