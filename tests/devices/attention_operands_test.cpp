// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "hyperslab/ops/attention.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class AttentionOperands : public DevicesTest {};

TEST_F(AttentionOperands, PartsMerge) {
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

TEST_F(AttentionOperands, PackedOnesGoTheWayOfThePackedOp) {
  const HeadLayout layout = {4, 2, 64};
  const Shape out = {2, 77, 256};
  Problem problem(DType::bf16);
  problem.input(random_tensor(DType::bf16, {2, 77, layout.packed_width()}, 1));
  for (int i = 0; i < 2; ++i) problem.output(DType::bf16, out).output(DType::f32, {2, 4, 77});
  const auto call = [=](Context& ctx, const Views& v) {
    attention_forward(ctx, layout, {}, v[0], v[1], v[2]);
    attention_operands_forward(ctx, packed_operands(layout, v[0]), {}, v[3], v[4]);
  };
  const auto check = [](const Results& found) {
    EXPECT_TRUE(same_bits(found[3].view(), found[1].view()));
    EXPECT_TRUE(same_bits(found[4].view(), found[2].view()));
  };
  problem.on_each(call, check, {0});
}

}  // namespace
}  // namespace hyperslab::ops
