// SPDX-License-Identifier: Apache-2.0
// Texts between the steps of a trainer that trains.
#include <gtest/gtest.h>

#include "hyperslab/generate/generate.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;
using test::SmallRun;

class Ids final : public TokenListener {
 public:
  explicit Ids(std::size_t prompts) : of(prompts) {}
  bool token(std::size_t prompt, const NextToken& next) override {
    of[prompt].push_back(next.id);
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return false; }

  Prompts of;
};

Prompts greedy(Generator& generator, const Prompts& prompts, std::int64_t tokens) {
  SamplingOptions options;
  options.max_tokens = tokens;
  options.temperature = 0;
  Ids ids(prompts.size());
  (void)generator.generate(prompts, options, ids);
  return ids.of;
}

train::TrainerOptions with_cache() {
  train::TrainerOptions options;
  options.generation = model::Generation::cached;
  options.canary = true;
  return options;
}

const std::vector<std::vector<std::string>>& kinds() {
  static const std::vector<std::vector<std::string>> all = {
      {"model.family=gpt2", "model.dropout=0.1"},
      {"model.family=llama", "model.kv_heads=2", "memory.recompute=selective"},
      {"model.family=llama", "model.qk_norm=head", "memory.recompute=full"},
      {"model.family=llama", "memory.recompute=full", "memory.mlp_rows=5"},
      {"model.norm_place=post", "model.position=sinusoidal"},
      {"model.family=llama", "model.norm_place=sandwich", "model.window=5"},
      {"model.parallel_block=true", "model.attention=reference"},
      {"quantization.weights=int8", "train.microbatch=4"}};
  return all;
}

TEST(Training, IsTheSameWithTextsBetweenItsSteps) {
  for (const auto& overrides : kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = small_config(overrides, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
    SmallRun plain(config, mesh, 0);
    SmallRun sampled(config, mesh, 0, with_cache());
    Generator generator(sampled.trainer(), config);
    Prompts first;
    Prompts last;
    for (int step = 1; step <= 6; ++step) {
      EXPECT_EQ(plain.step(step), sampled.step(step)) << step;
      // Of two lengths, beyond the context of 12, and as many as the rows.
      last = greedy(generator, {{1, 2, 3}, {4}, {5, 6, 7}}, 15);
      for (const auto& text : last) EXPECT_EQ(text.size(), 15U);
      if (step == 1) first = last;
    }
    EXPECT_NE(first, last) << "the texts are those of the parameters of a step";
  }
}

/// The logits of texts are those of a forward pass of the same parameters.
TEST(Training, TextsAreThoseOfAGeneratorAlone) {
  const train::Config config = small_config({"model.family=llama"}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun run(config, mesh, 0, with_cache());
  Generator between(run.trainer(), config);
  Generator alone(test::world(), config, nullptr, {.rows = 2});

  const Prompts prompts = {{1, 2, 3}, {4, 5, 6}, {7}};
  EXPECT_EQ(greedy(between, prompts, 20), greedy(alone, prompts, 20));
}

TEST(Training, TouchesExactlyThePlannedMemory) {
  for (const auto& overrides : kinds()) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    const train::Config config = small_config(overrides, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
    const model::MemoryPlan without = plan::make_plan(config, {}, 0).memory;
    SmallRun run(config, mesh, 0, with_cache());
    Generator generator(run.trainer(), config);
    run.step(1);
    (void)greedy(generator, {{1, 2, 3}}, 20);
    run.step(2);

    const model::MemoryPlan& plan = run.plan().memory;
    const model::Arenas& arenas = run.trainer().arenas();
    EXPECT_EQ(arenas.activations.highest_touched(), plan.activations);
    EXPECT_EQ(arenas.scratch.highest_touched(), plan.scratch);
    EXPECT_EQ(plan.parameters, without.parameters);
    EXPECT_EQ(plan.scratch, without.scratch);
    const auto& heads = config.model;
    const std::int64_t row = config.train.microbatch * config.model.width * 4;
    const std::int64_t cache =
        2 * heads.layers * config.train.microbatch * 16 * heads.kv_heads * heads.head_width() * 4;
    EXPECT_GE(plan.activations, without.activations + static_cast<std::size_t>(cache + row));
    EXPECT_LE(plan.activations, without.activations + static_cast<std::size_t>(cache + row) +
                                    256 * static_cast<std::size_t>(2 * heads.layers + 2));
    EXPECT_EQ(run.trainer().inspection().memory().peak_bytes() +
                  static_cast<std::int64_t>(plan.workspace),
              static_cast<std::int64_t>(plan.total()));
  }
}

}  // namespace
}  // namespace hyperslab::generate
