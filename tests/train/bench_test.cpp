// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/bench.hpp"

#include <gmock/gmock.h>

#include "hyperslab/core/error.hpp"
#include "hyperslab/train/out_of_memory.hpp"
#include "small_run.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using testing::HasSubstr;
using testing::Not;

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

/// What the rules of the deck forbid is not advised.
TEST(MemorySavings, KeepToTheRules) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"train.microbatch=3"},
           {"parallel.schedule=zero_bubble", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.zero=1", "memory.recompute=full"},
           {"parallel.tensor=4", "parallel.sequence=true"}}) {
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

TEST(BenchKernels, SumOverPhases) {
  const std::vector<KernelTime> times = {
      {"gemm", KernelClass::matmul, Phase::forward, 20, 3.0},
      {"gemm", KernelClass::matmul, Phase::backward, 40, 5.0},
      {"norm", KernelClass::reduction, Phase::forward, 10, 1.0},
      {"adam", KernelClass::optimizer, Phase::optimizer, 5, 9.0}};

  const train::BenchKernels kernels = train::summarize(times, 10);

  ASSERT_EQ(kernels.rows.size(), 3U);
  EXPECT_EQ(kernels.rows[0].name, "adam");
  EXPECT_EQ(kernels.rows[1].name, "gemm");
  EXPECT_EQ(kernels.rows[1].calls, 60);
  EXPECT_EQ(kernels.seconds(), 18.0);
  EXPECT_EQ(kernels.seconds(Phase::forward), 4.0);
  EXPECT_EQ(kernels.share(KernelClass::matmul), 8.0 / 18.0);
  EXPECT_EQ(kernels.share(KernelClass::matmul, Phase::forward), 0.75);
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
