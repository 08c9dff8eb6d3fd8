// SPDX-License-Identifier: Apache-2.0
#include "gpu_test.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

using GpuAttentionSinks = GpuTest;

/// A warp's rows and keys in splits, one and several.
TEST_F(GpuAttentionSinks, CachedMatchesTheOracle) {
  struct Case {
    Dim B, new_tokens, past;
    HeadLayout layout;
    Dim window = 0;
  };
  for (const DType dtype : kGpuTypes) {
    for (const auto& [B, tokens, past, layout, window] :
         std::vector<Case>{{1, 1, 0, {1, 1, 1}},
                           {2, 1, 6, {4, 2, 64}},
                           {2, 5, 40, {6, 2, 17}},
                           {1, 1, 9, {2, 2, 300}},
                           {1, 1, 300, {4, 2, 128}},
                           {2, 1, 3000, {8, 2, 64}},
                           {2, 1, 3000, {8, 2, 64}, 700},
                           {1, 3, 700, {2, 1, 256}}}) {
      const Dim rows = past + tokens + 3;
      const Shape cache = {B, rows, layout.kv_heads * layout.head_width};
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {B, tokens, layout.packed_width()}, 1))
          .in_out(random_tensor(dtype, cache, 2))
          .in_out(random_tensor(dtype, cache, 3))
          .input(random_tensor(dtype, {layout.heads}, 4, 3.0))
          .output(dtype, {B, tokens, layout.heads * layout.head_width});
      problem.expect_match(
          [=, layout = layout, past = past, window = window](Context& ctx, const Views& v) {
            AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, window});
            scores.sinks.logits = v[3];
            attention_cached_forward(ctx, layout, scores, {}, v[0], {v[1], v[2], past}, v[4]);
          },
          "attention_cached_forward with sinks");
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
