// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/attention.hpp"

#include <gmock/gmock.h>

#include "cuda/attention/table.hpp"
#include "cuda/tools/warpgroup.hpp"
#include "devices/attention_problem.hpp"
#include "gpu_test.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class GpuFusedAttention : public GpuTest, public testing::WithParamInterface<AttentionSize> {};

/// Both passes by one row of the tables; on `meta` the ops themselves, which plan for every row.
Problem::Call row_call(const AttentionSize& size, std::size_t row) {
  return [=](Context& ctx, const Views& v) {
    if (ctx.device() == Device::meta) return fused_call(size, false)(ctx, v);
    ctx.set_deterministic(false);
    const AttentionScores scores = size.scores(v[5]);
    cuda::kAttentionForward.at(row).launch(ctx, size.layout, scores, v[0], v[2], v[3]);
    cuda::kAttentionBackward.at(row).launch(ctx, size.layout, scores, v[1], {v[0], v[2], v[3]},
                                            {v[4], v[6], Accumulate::yes});
  };
}

TEST_P(GpuFusedAttention, EveryKernelThatSuitsMatchesTheOracle) {
  const AttentionSize size = GetParam();
  const Problem problem = fused_problem(size, DType::bf16);
  const auto oracle = problem.on_oracle(fused_call(size, false));
  const Tensor documents = first_keys(size.B, size.T, size.document);
  const cuda::AttentionProblem asked = {size.layout, size.scores(documents.view()), size.T, false};
  int suitable = 0;
  for (std::size_t row = 0; row < cuda::kAttentionForward.size(); ++row) {
    const auto& kernel = cuda::kAttentionForward.at(row);
    ASSERT_EQ(kernel.name, cuda::kAttentionBackward.at(row).name);
    if (!cuda::reason_against(kernel, asked, cuda::features_of_kernels()).empty()) continue;
    ++suitable;

    const auto found = problem.on_gpu(row_call(size, row));

    expect_fused(found, oracle, DType::bf16, size.str() + " by " + std::string(kernel.name));
  }
  EXPECT_GE(suitable, 1) << size.str();
}

INSTANTIATE_TEST_SUITE_P(Sizes, GpuFusedAttention, testing::ValuesIn(fused_sizes()));
INSTANTIATE_TEST_SUITE_P(Intervals, GpuFusedAttention, testing::ValuesIn(interval_sizes()));

TEST_F(GpuTest, FusedAttentionKeepsAGraphForEachMask) {
  const AttentionSize causal = {2, 96, {2, 2, 64}};
  AttentionSize open = causal;
  open.mask = kNoMask;
  const Problem problem = fused_problem(causal, DType::bf16);
  const auto both = [&](const AttentionSize& first, const AttentionSize& second) {
    return [=](Context& ctx, const Views& v) {
      fused_call(first, false)(ctx, v);
      fused_call(second, false)(ctx, v);
    };
  };

  for (const auto& [first, second] : {std::pair(causal, open), std::pair(open, causal)}) {
    const auto oracle = problem.on_oracle(fused_call(second, false));
    const auto found = problem.on_gpu(both(first, second));
    for (const auto& [i, slack] : {std::pair{2, 1}, {4, 2}}) {
      EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()),
                slack * tolerance(DType::bf16))
          << second.str() << ", operand " << i;
    }
  }
}

TEST_F(GpuTest, FusedAttentionNamesWhatItCannotDo) {
  const auto refused = [](const HeadLayout& layout, DType dtype) -> std::string {
    Context ctx(Device::cuda, 0);
    Tensor qkv(Device::cuda, dtype, {1, 16, layout.packed_width()});
    Tensor out(Device::cuda, dtype, {1, 16, layout.heads * layout.head_width});
    Tensor statistics(Device::cuda, DType::f32, {1, layout.heads, 16});
    try {
      attention_forward(ctx, layout, {}, qkv.view(), out.view(), statistics.view());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused({2, 2, 64}, DType::f32), testing::HasSubstr("f32"));
  EXPECT_THAT(refused({2, 2, 12}, DType::bf16), testing::HasSubstr("12"));
  EXPECT_THAT(refused({2, 2, 264}, DType::bf16), testing::HasSubstr("264"));
}

/// Operands of a call, of which one may begin one element after an aligned address.
class OffByOne {
 public:
  OffByOne(const AttentionSize& size, std::size_t misaligned) : misaligned_(misaligned) {
    take(DType::bf16, size.packed());
    take(DType::bf16, size.out());
    take(DType::f32, size.statistics());
    take(DType::bf16, size.out());
    take(DType::bf16, size.packed());
  }
  [[nodiscard]] const Views& views() const { return views_; }

 private:
  void take(DType dtype, const Shape& shape) {
    const Dim first = views_.size() == misaligned_ ? 1 : 0;
    tensors_.emplace_back(Device::cuda, dtype, Shape{first + shape.numel()});
    views_.push_back(tensors_.back().view().slice(first, shape.numel()).reshaped(shape));
  }
  std::size_t misaligned_;
  std::vector<Tensor> tensors_;
  Views views_;
};

TEST_F(GpuTest, FusedAttentionRefusesMisalignedViews) {
  const AttentionSize size = {1, 16, {2, 2, 64}};
  const std::vector<std::string> names = {"qkv", "out", "log_sum_exp", "dout", "dqkv"};
  Context ctx(Device::cuda, 0);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const OffByOne operands(size, i);
    const Views& v = operands.views();
    const auto expect_refused = [&](const std::string& op, const auto& call) {
      try {
        call();
        ADD_FAILURE() << op << " " << names[i] << ": nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::internal) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr(op + " " + names[i] + ": begins"));
      }
    };
    if (i < 3) {
      expect_refused("attention_forward",
                     [&] { attention_forward(ctx, size.layout, size.mask, v[0], v[1], v[2]); });
    }
    expect_refused("attention_backward", [&] {
      attention_backward(ctx, size.layout, size.mask, v[3], {v[0], v[1], v[2]}, {v[4]});
    });
  }
}

TEST_F(GpuTest, ReferenceAttentionInTf32IsCloseToTheOracle) {
  const AttentionSize size = {2, 96, {4, 2, 48}};
  const Problem problem = reference_problem(size, DType::f32);
  const auto oracle = problem.on_oracle(reference_call(size, {}));
  const auto found = problem.on_gpu([&](Context& ctx, const Views& v) {
    ctx.set_tf32(true);
    reference_call(size, {})(ctx, v);
  });
  EXPECT_LE(relative_difference(found[2].view(), oracle[2].view()), 5e-3);
  EXPECT_LE(relative_difference(found[5].view(), oracle[5].view()), 1e-2);
}

}  // namespace
}  // namespace hyperslab::ops
