// SPDX-License-Identifier: Apache-2.0
// The clocks of bench on a GPU.
#include <gtest/gtest.h>

#include <string>

#include "gpu/model_run.hpp"
#include "hyperslab/bench/bench.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/plan/machine_rate.hpp"

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
  bench::BenchOptions options;
  options.warmup = 5;
  options.steps = 1;
  options.components = true;

  const bench::BenchResult result =
      bench::run_bench(test::world(), test::read_model(kDeck, {}), options);

  EXPECT_FALSE(result.graphs);
  EXPECT_GT(result.clocks.host, 0.95 * result.clocks.events);
}

/// What utilization is against on a GPU that is not in the table: GEMMs come near the peak and
/// never above it.
TEST_F(GpuBench, TheMeasuredMatrixRateIsBelowThePeak) {
  for (const Precision precision :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) {
    Context run(Device::cuda);
    run.set_tf32(precision == Precision::tf32);
    const auto peak = machine_of(device_name()).peak(precision);
    if (!peak) continue;

    const plan::MachineRate rate = plan::measured_rate(test::world(), run, precision);

    EXPECT_TRUE(rate.is_measured);
    EXPECT_GT(rate.flops, 0.4 * *peak) << name_of(precision);
    EXPECT_LT(rate.flops, *peak) << name_of(precision);
  }
}

}  // namespace
}  // namespace hyperslab
