// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "gpu_test.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuAttentionOperands : public GpuTest {};

TEST_F(GpuAttentionOperands, PartsMergeAsOnTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [B, T, H, D] : std::vector<std::array<Dim, 4>>{
             {1, 1, 1, 1}, {2, 37, 3, 17}, {1, 128, 8, 128}, {3, 5, 2, 300}, {0, 4, 2, 8}}) {
      const Shape out = {B, T, H * D};
      const Shape sums = {B, H, T};
      Problem problem(dtype);
      problem.input(random_tensor(dtype, out, 1))
          .input(random_tensor(dtype, out, 2))
          .input(random_tensor(DType::f32, sums, 3, 8.0))
          .in_out(random_tensor(DType::f32, sums, 4, 8.0))
          .output(dtype, out);
      problem.expect_match(
          [](Context& ctx, const Views& v) {
            merge_attention(ctx, {v[0], v[2]}, {v[1], v[3]}, v[4], v[3]);
          },
          "merge_attention");
    }
  }
}

TEST_F(GpuAttentionOperands, PackedOnesGoTheWayOfThePackedOp) {
  const HeadLayout layout = {4, 2, 64};
  const Tensor qkv = random_tensor(DType::bf16, {2, 77, layout.packed_width()}, 1);
  const Shape out = {2, 77, 256};
  const auto outputs = [&](bool by_operands) {
    Problem problem(DType::bf16);
    problem.input(qkv.clone()).output(DType::bf16, out).output(DType::f32, {2, 4, 77});
    return problem.on_gpu([=](Context& ctx, const Views& v) {
      if (!by_operands) return attention_forward(ctx, layout, {}, v[0], v[1], v[2]);
      attention_operands_forward(ctx, packed_operands(layout, v[0]), {}, v[1], v[2]);
    });
  };
  const auto packed = outputs(false);
  const auto found = outputs(true);
  EXPECT_EQ(to_doubles(found[1].view()), to_doubles(packed[1].view()));
  EXPECT_EQ(to_doubles(found[2].view()), to_doubles(packed[2].view()));
}

TEST_F(GpuAttentionOperands, OthersAreRefusedByName) {
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

}  // namespace
}  // namespace hyperslab::ops
