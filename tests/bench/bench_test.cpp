// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/bench/bench.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "bench_rig.hpp"
#include "hyperslab/core/error.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using bench::BenchMode;
using testing::HasSubstr;
using testing::Not;

/// The rows of a bench that took a second for every part.
std::map<std::string, bench::BenchComponent> components(const std::vector<std::string>& overrides,
                                                        BenchMode mode = BenchMode::step,
                                                        Device device = Device::cpu,
                                                        DType compute = DType::f32) {
  const train::Config config = small_config(overrides, 0);
  train::TrainerOptions options;
  options.device = device;
  options.compute = compute;
  options.training = mode != BenchMode::forward;
  std::array<double, kMaxComponents> seconds{};
  seconds.fill(1);
  const plan::Plan plan = plan::make_plan(config, options, 0);
  std::map<std::string, bench::BenchComponent> rows;
  for (auto& row : bench::components_of(seconds, plan.ledger, {config, options, mode})) {
    rows[row.name] = row;
  }
  return rows;
}

TEST(BenchResult, HasNoUtilizationOfARateThatTheStepsExceed) {
  bench::BenchResult result;
  result.median = 0.5;
  result.model_flops = 4e9;
  result.model_flops_full = 5e9;
  result.matmul_rate = 10e9;
  EXPECT_DOUBLE_EQ(result.mfu(), 0.8);
  EXPECT_DOUBLE_EQ(result.mfu_full(), 1.0);

  result.matmul_rate = 2e9;
  EXPECT_DOUBLE_EQ(result.share_of_rate(), 4);
  EXPECT_TRUE(std::isnan(result.mfu()));
  EXPECT_TRUE(std::isnan(result.mfu_full()));
}

TEST(BenchComponents, SayWhereTheActivationIs) {
  const auto ffn = [](const std::vector<std::string>& overrides, Device device, DType compute,
                      BenchMode mode = BenchMode::step) {
    return components(overrides, mode, device, compute)["ffn"].fused;
  };
  constexpr Device kGpu = Device::cuda;
  const std::string fused = "biases, activation and its derivative in the products";
  const std::string alone =
      "biases in the products; activation and its derivative in passes of their own";

  EXPECT_EQ(ffn({}, kGpu, DType::bf16), fused);
  EXPECT_EQ(ffn({}, kGpu, DType::f16), fused);
  EXPECT_EQ(ffn({}, Device::cpu, DType::f32), alone);
  EXPECT_EQ(ffn({}, kGpu, DType::f32), alone);
  EXPECT_EQ(ffn({"model.activation=relu"}, kGpu, DType::bf16), alone);
  EXPECT_EQ(ffn({"model.ffn_width=100"}, kGpu, DType::bf16), alone);
  EXPECT_EQ(ffn({"parallel.tensor=2", "model.ffn_width=104"}, kGpu, DType::bf16), alone);
  EXPECT_EQ(ffn({"run.deterministic=true"}, kGpu, DType::bf16),
            "biases and the activation's derivative in the products; activation in a pass of its "
            "own");
  EXPECT_EQ(ffn({"parallel.schedule=zero_bubble"}, kGpu, DType::bf16),
            "biases and activation in the products; the activation's derivative in a pass of its "
            "own");
  EXPECT_EQ(ffn({}, kGpu, DType::bf16, BenchMode::forward),
            "biases and activation in the products");
  EXPECT_EQ(ffn({"model.activation=swiglu", "model.bias=false"}, kGpu, DType::bf16),
            "gate and activation in one pass");
}

TEST(BenchComponents, NameNothingThatDoesNotRun) {
  for (const auto& [name, row] : components({}, BenchMode::forward)) {
    for (const char* absent : {"gradient", "derivative", "update"}) {
      EXPECT_THAT(row.fused, Not(HasSubstr(absent))) << name;
    }
  }
  EXPECT_EQ(components({}, BenchMode::forward_backward)["optimizer"].fused, "");
  for (const auto& [name, row] : components({"model.bias=false"})) {
    EXPECT_THAT(row.fused, Not(HasSubstr("bias"))) << name;
  }
  EXPECT_EQ(components({"model.position=none"})["embedding"].fused, "");
  EXPECT_EQ(components({"model.family=llama", "model.position=rope"})["embedding"].fused, "");
  EXPECT_EQ(components({"model.norm=none"})["norms"].fused, "");
  EXPECT_EQ(components({})["optimizer"].fused, "update and moments in one pass");
  EXPECT_EQ(components({}, BenchMode::step, Device::cuda, DType::bf16)["optimizer"].fused,
            "update, moments and rounded copy in one pass");
  EXPECT_THAT(components({})["head"].fused, HasSubstr("gradient of the logits in one pass"));
  EXPECT_THAT(components({"parallel.tensor=2"})["head"].fused, HasSubstr("in another"));
}

/// 3 layers, 4 heads, 12 samples of 12 tokens.
TEST(BenchComponents, CountTheRowSoftmax) {
  const double kept = 3 * 4 * 12 * (12 * 13 / 2);
  const std::vector<std::string> reference = {"model.attention=reference"};

  auto step = components(reference);
  auto forward = components(reference, BenchMode::forward);
  auto fused = components({"model.attention=fused"});

  const auto& parts = step["attention"].parts;
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[2].name, "softmax");
  EXPECT_NEAR(parts[2].flops, 9 * kept, 1e-6 * kept);
  EXPECT_NEAR(forward["attention"].parts[2].flops, 5 * kept, 1e-6 * kept);
  EXPECT_TRUE(fused["attention"].parts.empty());
  double flops = 0;
  double shares = 0;
  for (const auto& [name, row] : step) {
    flops += row.flops;
    shares += row.expected_share;
  }
  EXPECT_NEAR(shares, 1, 1e-12);
  EXPECT_NEAR(parts[2].expected_share, 9 * kept / flops, 1e-12);
  // 24 wide, forward and backward: four products inside, 6 FLOPs a token and parameter outside.
  const double inside = 3 * 12 * 12 * 12 * 12 * 24.0;
  EXPECT_GT(step["attention"].flops, inside + parts[2].flops + 6.0 * 12 * 12 * 3 * 4 * 24 * 24);
}

TEST(BenchKernels, SumOverPhases) {
  const std::vector<KernelTime> times = {
      {"gemm", Phase::forward, 20, 3.0},
      {"gemm", Phase::backward, 40, 5.0},
      {"add_norm_kernel", Phase::forward, 10, 1.0},
      {"each_kernel<4, Update<float> >", Phase::optimizer, 5, 9.0}};

  const bench::BenchKernels kernels = bench::summarize(times, 10);

  ASSERT_EQ(kernels.rows.size(), 3U);
  EXPECT_EQ(kernels.rows[0].name, "each_kernel<4, Update<float> >");
  EXPECT_EQ(kernels.rows[0].kernel_class, ops::KernelClass::optimizer);
  EXPECT_EQ(kernels.rows[1].name, "gemm");
  EXPECT_EQ(kernels.rows[1].calls, 60);
  EXPECT_EQ(kernels.seconds(), 18.0);
  EXPECT_EQ(kernels.seconds(Phase::forward), 4.0);
  EXPECT_EQ(kernels.share(ops::KernelClass::matmul), 8.0 / 18.0);
  EXPECT_EQ(kernels.share(ops::KernelClass::matmul, Phase::forward), 0.75);
  EXPECT_EQ(kernels.calls_per_forward(kernels.rows[1]), 2.0);
  EXPECT_EQ(kernels.top(Phase::forward), &kernels.rows[1]);
  EXPECT_EQ(kernels.top(Phase::optimizer), &kernels.rows[0]);
  EXPECT_EQ(kernels.top(Phase::data), nullptr);
  EXPECT_EQ(bench::BenchKernels().top(Phase::forward), nullptr);
}

TEST(BenchKernels, ReportLeastMedianMostAndDeviationOfCalls) {
  const std::vector<KernelTime> times = {{"gemm", Phase::forward, 2, 4.0, {1.0, 3.0}},
                                         {"gemm", Phase::backward, 2, 10.0, {2.0, 8.0}},
                                         {"add", Phase::forward, 1, 0.5, {0.5}}};

  const bench::BenchKernels kernels = bench::summarize(times, 1);

  ASSERT_EQ(kernels.rows.size(), 2U);
  const bench::CallFigures& gemm = kernels.rows[0].call;
  EXPECT_EQ(gemm.minimum, 1.0);
  EXPECT_EQ(gemm.median, 2.5);
  EXPECT_EQ(gemm.maximum, 8.0);
  EXPECT_NEAR(gemm.standard_deviation, 3.1091, 1e-4);  // of 1, 3, 2, 8
  EXPECT_EQ(kernels.rows[1].call.minimum, 0.5);
  EXPECT_EQ(kernels.rows[1].call.standard_deviation, 0.0);
}

TEST(BenchKernels, OpsOfTheCpuHaveAClass) {
  EXPECT_EQ(ops::class_of_op("linear_activation_forward"), ops::KernelClass::matmul);
  EXPECT_EQ(ops::class_of_op("attention_reference_backward"), ops::KernelClass::attention);
  EXPECT_EQ(ops::class_of_op("softmax_cross_entropy"), ops::KernelClass::softmax);
  EXPECT_EQ(ops::class_of_op("add_norm_forward"), ops::KernelClass::reduction);
  EXPECT_EQ(ops::class_of_op("adamw"), ops::KernelClass::optimizer);
  EXPECT_EQ(ops::class_of_op("rope"), ops::KernelClass::elementwise);
}

TEST(CallCounts, TheRuleIsNoHostInTheLoop) {
  bench::CallCounts counts;
  counts.segments = 3;
  const auto with = [&](const char* name, std::int64_t calls) {
    counts.calls.push_back({name, kind_of_call(name), calls});
    return counts.passes();
  };

  EXPECT_TRUE(with("cudaGraphLaunch", 3 * bench::CallCounts::kSteps));
  EXPECT_TRUE(with("cudaMemcpyAsync", 1000));
  EXPECT_TRUE(with("cudaLaunchKernel", 9 * bench::CallCounts::kSteps));
  EXPECT_EQ(counts.launches_per_segment(), 4.0);
  EXPECT_FALSE(with("cudaLaunchKernel", 1));
  counts.calls.pop_back();
  EXPECT_FALSE(with("cudaStreamSynchronize", 1));
  counts.calls.pop_back();
  EXPECT_FALSE(with("cudaMalloc", 1));
}

}  // namespace
}  // namespace hyperslab
