// SPDX-License-Identifier: Apache-2.0
// Gradients of parameters stored and summed in bf16 (precision.gradients) beside those in f32, in
// all layouts that have one microbatch a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "support/tensors.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::SmallRun;
using test::world;
using Overrides = std::vector<std::string>;

constexpr int kGradientSteps = 4;

struct GradientTrace {
  std::vector<double> losses;
  std::vector<std::vector<double>> gradients;  ///< of this rank, in step 1
  std::size_t gradient_bytes = 0;
};

GradientTrace trace_of(const Overrides& overrides, const std::string& gradients) {
  Overrides all = {"model.width=64", "model.ffn_width=128", "model.context=32",
                   "precision.compute=bf16", "precision.gradients=" + gradients};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const train::Config config = test::small_config(all, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  options.compute = DType::bf16;
  SmallRun run(config, mesh, world().rank(), options);
  GradientTrace trace;
  for (int step = 1; step <= kGradientSteps; ++step) {
    trace.losses.push_back(run.step(step));
    if (step > 1) continue;
    trace.gradients.push_back(test::to_doubles(run.trainer().gradients().data));
  }
  trace.gradient_bytes = run.plan().memory.gradients;
  return trace;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double product = 0;
  double squares_a = 0;
  double squares_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    product += a[i] * b[i];
    squares_a += a[i] * a[i];
    squares_b += b[i] * b[i];
  }
  return product / std::sqrt(squares_a * squares_b);
}

class Bf16GradientsOfARun : public testing::TestWithParam<Overrides> {};

TEST_P(Bf16GradientsOfARun, AreThoseInF32Rounded) {
  const bool is_parallel = std::ranges::any_of(
      GetParam(), [](const std::string& word) { return word.starts_with("parallel."); });
  if (is_parallel != (world().size() == 2)) GTEST_SKIP() << "a layout of another number of ranks";
  const GradientTrace wide = trace_of(GetParam(), "fp32");
  const GradientTrace narrow = trace_of(GetParam(), "bf16");

  EXPECT_LT(narrow.gradient_bytes, wide.gradient_bytes * 0.51);  // buckets are padded
  EXPECT_TRUE(narrow.gradients != wide.gradients) << "nothing was rounded";
  for (std::size_t i = 0; i < wide.gradients.size(); ++i) {
    ASSERT_EQ(narrow.gradients[i].size(), wide.gradients[i].size());
    EXPECT_GT(cosine(narrow.gradients[i], wide.gradients[i]), 0.9999);
  }
  EXPECT_EQ(narrow.losses.front(), wide.losses.front());
  for (int step = 1; step < kGradientSteps; ++step) {
    EXPECT_NEAR(narrow.losses[step], wide.losses[step], 5e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Bf16GradientsOfARun,
    testing::Values(Overrides{"train.microbatch=12"},
                    Overrides{"train.microbatch=12", "model.family=llama"},
                    Overrides{"train.microbatch=12", "optimizer.name=muon"},
                    Overrides{"train.microbatch=12", "optimizer.name=sgd"},
                    Overrides{"train.microbatch=12", "memory.recompute=full"},
                    Overrides{"train.microbatch=12", "precision.gemm=fp8_tensor",
                              "precision.fp8_min_width=32"},
                    Overrides{"train.microbatch=6", "parallel.data=2"},
                    Overrides{"train.microbatch=6", "parallel.data=2", "parallel.zero=1"},
                    Overrides{"train.microbatch=6", "parallel.data=2", "parallel.zero=2"},
                    Overrides{"train.microbatch=12", "parallel.tensor=2"},
                    Overrides{"train.microbatch=12", "parallel.tensor=2", "parallel.sequence=true"},
                    Overrides{"train.microbatch=12", "parallel.pipeline=2"}));

}  // namespace
}  // namespace hyperslab
