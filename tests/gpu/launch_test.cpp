// SPDX-License-Identifier: Apache-2.0
#include "gpu_test.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Dim kRows = 8192;  // the most whose kernels wait beside the ones before
constexpr Dim kLogits = 64;

/// Three kernels in a row, of which the second touches nothing of the others: one block that takes
/// long to write scores, a small sum beside it, and a sum that reads the scores.
class ThreeInARow {
 public:
  ThreeInARow() : ctx_(Device::cuda, std::size_t{1} << 20) {
    fill(ctx_, 0, logits_.view());
    fill(ctx_, 0, sums_.view());
    fill(ctx_, 0, small_.view());
    fill(ctx_, 0, total_.view());
    copy(ctx_, filled_tensor(DType::i32, {kRows}, 0).view(), targets_.view());
    synchronize(ctx_);
  }
  void run(int times) {
    for (int i = 0; i < times; ++i) {
      fill(ctx_, -1, scores_.view());
      softmax_cross_entropy(ctx_,
                            {.logits = logits_.view(),
                             .shard = whole_vocabulary(kLogits),
                             .targets = targets_.view(),
                             .scores = scores_.view()},
                            nullptr, WithGradient::no, sums_.view());
      add(ctx_, small_.view(), small_.view(), small_.view());
      add(ctx_, total_.view(), scores_.view(), total_.view());
    }
  }
  /// Of all rows, how often the target was the answer.
  [[nodiscard]] std::vector<double> answers() {
    Tensor host(Device::cpu, DType::f32, total_.view().shape());
    copy(ctx_, total_.view(), host.view());
    synchronize(ctx_);
    std::vector<double> out;
    const std::vector<double> all = to_doubles(host.view());
    for (std::size_t i = kScoreIsAnswer; i < all.size(); i += kTargetScoreCount) {
      out.push_back(all[i]);
    }
    return out;
  }
  [[nodiscard]] Context& ctx() { return ctx_; }

 private:
  Context ctx_;
  Tensor logits_{Device::cuda, DType::f32, {kRows, kLogits}};
  Tensor targets_{Device::cuda, DType::i32, {kRows}};
  Tensor scores_{Device::cuda, DType::f32, {kRows, kTargetScoreCount}};
  Tensor total_{Device::cuda, DType::f32, {kRows, kTargetScoreCount}};
  Tensor sums_{Device::cuda, DType::f32, {kSumCount}};
  Tensor small_{Device::cuda, DType::f32, {1, 8}};
};

using GpuLaunch = GpuTest;

TEST_F(GpuLaunch, TheThirdKernelSeesWhatTheFirstWrote) {
  ThreeInARow kernels;

  kernels.run(100);

  EXPECT_EQ(kernels.answers(), std::vector<double>(kRows, 100));
}

TEST_F(GpuLaunch, TheThirdKernelOfAGraphSeesWhatTheFirstWrote) {
  ThreeInARow kernels;
  GraphSegment segment;

  for (int i = 0; i < 10; ++i) segment.run(kernels.ctx(), true, [&] { kernels.run(20); });

  EXPECT_EQ(kernels.answers(), std::vector<double>(kRows, 200));
}

}  // namespace
}  // namespace hyperslab::ops
