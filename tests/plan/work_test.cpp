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

}  // namespace
}  // namespace hyperslab
