// SPDX-License-Identifier: Apache-2.0
// GPUs have no double, and refuse no token: they cannot see it before they have read it.
#include <cmath>

#include "gpu_test.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

using GpuOps = GpuTest;

TEST_F(GpuOps, NormalsHaveTheBitsOfTheCpu) {
  const auto normals = [](Device device, const Shape& shape, std::uint64_t first) {
    Context ctx(device, 0);
    Tensor y(device, DType::f32, shape);
    fill_normal(ctx, {17, 3, 0.02F}, first, static_cast<std::uint64_t>(shape[1]) + 5, y.view());
    Tensor host(Device::cpu, DType::f32, shape);
    copy(ctx, y.view(), host.view());
    synchronize(ctx);
    return host;
  };
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{70000, 3}, Shape{2, 1 << 20}}) {
    for (const std::uint64_t first : {0, 1, 6}) {
      EXPECT_TRUE(same_bits(normals(Device::cuda, shape, first).view(),
                            normals(Device::cpu, shape, first).view()))
          << shape.str() << " from " << first;
    }
  }
}

TEST_F(GpuOps, DoubleIsRefused) {
  Problem problem(DType::f64);
  problem.input(random_tensor(DType::f64, {2, 2}, 1)).output(DType::f64, {2, 2});
  expect_error_naming("f64", [&] {
    (void)problem.on_gpu([](Context& ctx, const Views& v) { add(ctx, v[0], v[0], v[1]); });
  });
  expect_error_naming("f64", [&] {
    (void)problem.on_gpu([](Context& ctx, const Views& v) {
      matmul(ctx, v[0], Trans::no, v[0], Trans::no, Accumulate::no, v[1]);
    });
  });
}

TEST_F(GpuOps, AttentionOfOperandsThatAreNotPackedIsRefused) {
  Problem problem(DType::bf16);
  problem.input(random_tensor(DType::bf16, {1, 8, 64}, 1))
      .input(random_tensor(DType::bf16, {1, 8, 64}, 2))
      .output(DType::bf16, {1, 8, 64})
      .output(DType::f32, {1, 1, 8});
  EXPECT_THROW((void)problem.on_gpu([](Context& ctx, const Views& v) {
    const HeadsOf<CView> keys = {v[1], 0, 1, 64};
    attention_operands_forward(ctx, {{v[0], 0, 1, 64}, keys, keys}, {}, v[2], v[3]);
  }),
               Error);
}

TEST_F(GpuOps, ATokenOutsideTheTableGivesNotANumber) {
  Problem problem(DType::f32);
  problem.fixed(int_tensor({1, 3}, {1, 5, -1}))
      .input(random_tensor(DType::f32, {5, 8}, 1))
      .output(DType::f32, {1, 3, 8});
  const auto found = problem.on_gpu([](Context& ctx, const Views& v) {
    embedding_forward(ctx, v[0], {.table = v[1], .shard = whole_vocabulary(5)}, 1, v[2]);
  });
  const auto values = to_doubles(found[2].view());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i >= 8) << i;
}

TEST_F(GpuOps, ATargetOutsideTheVocabularyGivesALossThatIsNotANumber) {
  for (const std::int32_t V : {50, 4096}) {
    Problem problem(DType::f32);
    problem.in_out(random_tensor(DType::f32, {2, V}, 1))
        .fixed(int_tensor({2}, {7, V}))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 1))
        .fixed(bytes_of(StepState()));
    const auto found = problem.on_gpu([V](Context& ctx, const Views& v) {
      softmax_cross_entropy(ctx, {v[0], whole_vocabulary(V), v[1]}, struct_at<StepState>(v[3]),
                            WithGradient::yes, v[2]);
    });
    const auto sums = to_doubles(found[2].view());
    EXPECT_TRUE(std::isnan(sums[kSumLoss])) << V;
    EXPECT_EQ(sums[kSumTokens], 2) << V << ": one, and that of before";
  }
}

}  // namespace
}  // namespace hyperslab::ops
