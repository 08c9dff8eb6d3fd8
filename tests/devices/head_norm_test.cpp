// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/head_norm.hpp"

#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class HeadNorm : public DevicesTest {};

/// A lane's column, odd widths, the widest; as many key heads as query heads, and fewer.
const std::vector<HeadLayout> kLayouts = {{1, 1, 1},  {3, 3, 6},   {4, 2, 33},
                                          {8, 1, 64}, {5, 5, 128}, {2, 1, 256}};

TEST_F(HeadNorm, ForwardAndBackward) {
  for (const DType dtype : compute_types()) {
    for (const HeadLayout& layout : kLayouts) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        const Dim heads = layout.heads + layout.kv_heads;
        const Shape weight = {layout.head_width};
        Problem problem(dtype);
        problem.in_out(random_tensor(dtype, {2, 77, layout.packed_width()}, 1))
            .input(random_tensor(dtype, weight, 2))
            .input(random_tensor(dtype, weight, 3))
            .output(dtype, {2, 77, heads * layout.head_width})
            .output(DType::f32, {2, 77, heads})
            .in_out(random_tensor(dtype, {2, 77, layout.packed_width()}, 4))
            .in_out(random_tensor(DType::f32, weight, 5))
            .in_out(random_tensor(DType::f32, weight, 6));
        problem.expect_match(
            [=](Context& ctx, const Views& v) {
              const HeadNormWeights weights = {v[1], v[2], 1e-5F};
              head_norm_forward(ctx, layout, weights, v[0], {v[3], v[4]});
              head_norm_backward(ctx, layout, weights, {v[3], v[4]}, v[5],
                                 {v[6], v[7], accumulate});
            },
            "head_norm");
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
