// SPDX-License-Identifier: Apache-2.0
// The clocks of bench on a GPU.
#include <gtest/gtest.h>

#include "gpu/model_run.hpp"
#include "hyperslab/train/bench.hpp"

namespace hyperslab {
namespace {

constexpr const char* kDeck = R"(
run: {name: clocks, seed: 9, device: cuda}
model: {family: gpt2, layers: 8, width: 64, heads: 2, vocabulary: 257, context: 32}
data: {train: [synthetic]}
precision: {compute: bf16}
train: {steps: 9, global_batch: 4, microbatch: 4}
)";

class GpuBench : public test::GpuTest {};

/// Kernels so small that without graphs the host is the slower one: an interval that began where it
/// saw the warm-up's end would miss most of the step.
TEST_F(GpuBench, WithoutGraphsTheHostSeesWholeSteps) {
  train::BenchOptions options;
  options.warmup = 5;
  options.steps = 1;
  options.components = true;

  const train::BenchResult result =
      train::run_bench(test::world(), test::read_model(kDeck, {}), options);

  EXPECT_FALSE(result.graphs);
  EXPECT_GT(result.clocks.host, 0.95 * result.clocks.events);
}

}  // namespace
}  // namespace hyperslab
