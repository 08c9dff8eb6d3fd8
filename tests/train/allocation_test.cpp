// SPDX-License-Identifier: Apache-2.0
// Rule 1 of the hot path: a step allocates nothing after the first.
#include <gtest/gtest.h>

#include "support/allocations.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

TEST(Step, TheCountersSeeEveryKindOfAllocation) {
  const long before = test::allocations();
  { const Tensor aligned(Device::cpu, DType::f32, {1000}); }
  EXPECT_EQ(test::allocations() - before, 1);
  ::operator delete(::operator new(1000));
  EXPECT_EQ(test::allocations() - before, 2);
}

TEST(Step, AllocatesNothingAfterTheFirst) {
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    const std::vector<std::vector<std::string>> kinds = {
        {"model.attention=fused"},
        {"model.attention=reference"},
        {"memory.recompute=full", "memory.mlp_rows=7", "memory.loss_rows=5"}};
    for (std::vector<std::string> overrides : kinds) {
      overrides.insert(overrides.end(), {family, "model.dropout=0.1"});
      const train::Config config = test::small_config(overrides, 1);
      const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
      test::SmallRun run(config, mesh, 0);
      run.step(1);

      const long before = test::allocations();
      for (int step = 2; step <= 5; ++step) run.step(step);

      EXPECT_EQ(test::allocations() - before, 0) << testing::PrintToString(overrides);
    }
  }
}

}  // namespace
}  // namespace hyperslab
