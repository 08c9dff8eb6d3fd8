// SPDX-License-Identifier: Apache-2.0
// What a step computes, found on `meta`, against a closed form.
#include <gtest/gtest.h>

#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::small_config;

/// Matrix products of a step by hand: 2 M N K each, forward once, backward twice.
TEST(Plan, FlopsMatchTheClosedForm) {
  const train::Config config = small_config({"model.width=256", "model.vocabulary=500"}, 1);
  const plan::Plan plan = plan::make_plan(config, {}, 0);
  const double tokens = 12 * 12;
  const double linear = 6.0 * tokens * (3 * (4 * 256 * 256 + 2 * 256 * 1024) + 500 * 256);

  double matmul = 0;
  for (const auto& [key, work] : plan.ledger.rows()) {
    if (key.second.starts_with("linear") || key.second == "matmul") matmul += work.flops;
  }

  EXPECT_NEAR(matmul / linear, 1.0, 0.02);  // biases and activations ride along
}

/// Products and their FLOP of a step, of all layers' feed-forward networks.
std::pair<std::int64_t, double> mlp_products(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"model.family=llama", "model.activation=swiglu"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const plan::Plan plan = plan::make_plan(small_config(overrides, 1), {}, 0);
  std::pair<std::int64_t, double> found = {0, 0};
  for (const auto& [key, work] : plan.ledger.rows()) {
    if (key.first != "ffn" || !key.second.starts_with("linear")) continue;
    found.first += work.calls;
    found.second += work.flops;
  }
  return found;
}

/// Gate and up are one product of two parts, down has one: three parts forward, six backward. A
/// block that is computed again ends before its second layer; so do pieces of a network.
TEST(Plan, RecomputedFeedForwardNetworksLeaveOutTheirLastProduct) {
  const auto [calls, flops] = mlp_products({});
  const auto [calls_again, flops_again] = mlp_products({"memory.recompute=full"});
  // Eight rows: three pieces of a microbatch of 24.
  const auto [calls_of_pieces, flops_of_pieces] =
      mlp_products({"memory.recompute=full", "memory.mlp_rows=8"});

  EXPECT_EQ(calls % 6, 0);  // two products forward, four backward
  EXPECT_EQ(calls_again, calls / 6 * 7);
  EXPECT_EQ(calls_of_pieces, 3 * calls_again);
  EXPECT_NEAR(flops_again / flops, 11.0 / 9, 1e-9);
  EXPECT_NEAR(flops_of_pieces / flops_again, 1, 1e-9);
}

/// Of the Newton-Schulz iterations of a rank.
double muon_flops(std::vector<std::string> overrides, int ranks, int rank) {
  overrides.emplace_back("optimizer.name=muon");
  overrides.emplace_back("train.global_batch=16");
  const plan::Plan plan = plan::make_plan(small_config(overrides, ranks), {}, rank);
  double flops = 0;
  for (const auto& [key, work] : plan.ledger.rows()) {
    if (key.second == "matmul_gram" || key.second == "matmul_add") flops += work.flops;
  }
  return flops;
}

TEST(Plan, RanksOfDataAndTensorGroupsShareMuonsProducts) {
  const double all = muon_flops({}, 1, 0);
  // Query, key, value and output of 24 x 24, up and down of 24 x 96, in three layers.
  const double square = 5 * 6.0 * 24 * 24 * 24;
  const double wide = 5 * (4.0 * 24 * 24 * 96 + 2.0 * 24 * 24 * 24);
  EXPECT_DOUBLE_EQ(all, 3 * (4 * square + 2 * wide));
  const std::vector<std::string> layouts[] = {{"parallel.data=4"},
                                              {"parallel.data=4", "parallel.zero=1"},
                                              {"parallel.data=4", "parallel.zero=2"},
                                              {"parallel.tensor=4"},
                                              {"parallel.data=2", "parallel.tensor=2"}};
  for (const std::vector<std::string>& layout : layouts) {
    double sum = 0;
    double most = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const double mine = muon_flops(layout, 4, rank);
      sum += mine;
      most = std::max(most, mine);
    }
    EXPECT_DOUBLE_EQ(sum, all) << layout.back();
    EXPECT_LE(most, 1.25 * all / 4) << layout.back();
  }
}

}  // namespace
}  // namespace hyperslab
