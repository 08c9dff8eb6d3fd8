// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/bench.hpp"

#include <gmock/gmock.h>

#include "bench_rig.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/train/out_of_memory.hpp"
#include "small_run.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using testing::HasSubstr;
using testing::Not;
using train::BenchMode;

std::size_t planned(const std::vector<std::string>& overrides, int ranks) {
  return train::make_plan(small_config(overrides, ranks), {}, 0).memory.total();
}

TEST(MemorySavings, AreThoseOfThePlans) {
  const auto savings = train::memory_savings(small_config({"parallel.data=2"}, 2), {}, 0);
  const auto now = planned({"parallel.data=2"}, 2);
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"train.microbatch: 1", {"train.microbatch=1"}},
      {"memory.recompute: selective", {"memory.recompute=selective"}},
      {"memory.recompute: full", {"memory.recompute=full"}},
      {"parallel.zero: 1", {"parallel.zero=1"}},
      {"parallel.zero: 2", {"parallel.zero=2"}},
      {"parallel.tensor: 2 with 4 ranks", {"parallel.tensor=2"}}};
  std::map<std::string, std::size_t> found;
  for (const train::MemorySaving& saving : savings) {
    found[saving.setting] = saving.planned_bytes;
    EXPECT_EQ(saving.saved_bytes, static_cast<std::int64_t>(now - saving.planned_bytes));
  }
  EXPECT_TRUE(std::ranges::is_sorted(savings, std::greater<>(), &train::MemorySaving::saved_bytes));
  for (const auto& [setting, changes] : wanted) {
    std::vector<std::string> overrides = {"parallel.data=2"};
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    const std::size_t then = planned(overrides, setting.find("tensor") == 9 ? 4 : 2);
    if (then < now) {
      ASSERT_TRUE(found.contains(setting)) << setting;
      EXPECT_EQ(found[setting], then) << setting;
    } else {
      EXPECT_FALSE(found.contains(setting)) << setting;
    }
  }
  EXPECT_TRUE(found.contains("train.microbatch: 1"));
  EXPECT_TRUE(found.contains("memory.recompute: full"));
}

/// What the rules of the deck forbid is not with_oom_advice.
TEST(MemorySavings, KeepToTheRules) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"train.microbatch=3"},
           {"parallel.schedule=zero_bubble", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.zero=1", "memory.recompute=full"},
           {"parallel.tensor=4", "parallel.sequence=true"},
           {"parallel.data=2", "train.log_norms=5"}}) {
    const train::Config asked = small_config(overrides, 0);
    for (const train::MemorySaving& saving : train::memory_savings(asked, {}, 0)) {
      std::string change = saving.setting.substr(0, saving.setting.find(" with "));
      change.replace(change.find(": "), 2, "=");
      std::vector<std::string> changed = overrides;
      changed.push_back(change);
      EXPECT_NO_THROW((void)small_config(changed, 0)) << change;
    }
  }
  train::TrainerOptions forward;
  forward.training = false;
  for (const auto& saving :
       train::memory_savings(small_config({"parallel.data=2"}, 2), forward, 0)) {
    EXPECT_THAT(saving.setting, Not(HasSubstr("recompute")));
    EXPECT_THAT(saving.setting, Not(HasSubstr("zero")));
  }
}

TEST(MemorySavings, FusedAttentionWhereAGpuHasIt) {
  train::TrainerOptions options;
  options.device = Device::cuda;
  const std::vector<std::string> deck = {"model.context=2048", "model.width=32"};
  const auto found = [&](DType compute, const std::vector<std::string>& changes) {
    options.compute = compute;
    std::vector<std::string> overrides = deck;
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    std::map<std::string, std::size_t> bytes;
    for (const auto& saving : train::memory_savings(small_config(overrides, 1), options, 0)) {
      bytes[saving.setting] = saving.planned_bytes;
    }
    return bytes;
  };
  const std::string fused = "model.attention: auto";
  const std::string kept = "model.attention=reference";

  const auto half = found(DType::bf16, {kept});
  ASSERT_TRUE(half.contains(fused));
  EXPECT_EQ(half.at(fused), train::make_plan(small_config(deck, 1), options, 0).memory.total());
  EXPECT_TRUE(found(DType::f16, {kept, "model.dropout=0.1"})
                  .contains(fused + " with no dropout of attention's probabilities"));
  EXPECT_FALSE(found(DType::bf16, {}).contains(fused));
  EXPECT_FALSE(found(DType::f32, {kept}).contains(fused));
  EXPECT_FALSE(found(DType::bf16, {kept, "model.width=48"}).contains(fused));
}

/// More than addresses reach: the activations of many long samples.
TEST(OutOfMemory, OfATrainerSaysWhatWouldHelp) {
  const train::Config config =
      small_config({"train.microbatch=65536", "train.global_batch=65536", "model.context=131072",
                    "model.layers=24", "model.attention=fused"},
                   1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
  const train::Plan plan = train::make_plan(config, {}, 0);
  try {
    const train::Trainer trainer(config, mesh, {}, &plan.memory);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(plan.memory.activations)));
    EXPECT_THAT(error.what(), HasSubstr("(activations)"));
    EXPECT_THAT(error.what(), HasSubstr("are free"));
    EXPECT_THAT(error.what(), HasSubstr("train.microbatch: 32768 (saves "));
    EXPECT_THAT(error.what(), HasSubstr("memory.recompute: full (saves "));
    EXPECT_THAT(error.what(), Not(HasSubstr("parallel.zero")));
  }
}

/// The rows of a bench that took a second for every part.
std::map<std::string, train::BenchComponent> components(const std::vector<std::string>& overrides,
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
  const train::Plan plan = train::make_plan(config, options, 0);
  std::map<std::string, train::BenchComponent> rows;
  for (auto& row : train::components_of(seconds, plan.ledger, {config, options, mode})) {
    rows[row.name] = row;
  }
  return rows;
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

  const train::BenchKernels kernels = train::summarize(times, 10);

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
  EXPECT_EQ(train::BenchKernels().top(Phase::forward), nullptr);
}

TEST(CallCounts, TheRuleIsNoHostInTheLoop) {
  train::CallCounts counts;
  counts.segments = 3;
  const auto with = [&](const char* name, std::int64_t calls) {
    counts.calls.push_back({name, kind_of_call(name), calls});
    return counts.passes();
  };

  EXPECT_TRUE(with("cudaGraphLaunch", 3 * train::CallCounts::kSteps));
  EXPECT_TRUE(with("cudaMemcpyAsync", 1000));
  EXPECT_TRUE(with("cudaLaunchKernel", 9 * train::CallCounts::kSteps));
  EXPECT_EQ(counts.launches_per_segment(), 4.0);
  EXPECT_FALSE(with("cudaLaunchKernel", 1));
  counts.calls.pop_back();
  EXPECT_FALSE(with("cudaStreamSynchronize", 1));
  counts.calls.pop_back();
  EXPECT_FALSE(with("cudaMalloc", 1));
}

}  // namespace
}  // namespace hyperslab
