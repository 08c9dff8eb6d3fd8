// SPDX-License-Identifier: Apache-2.0
#include "gpu_test.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "support/first_keys.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

struct Size {
  Dim B, T;
  HeadLayout layout;
  Dim window = 0;
  Dim document = 0;
  double softcap = 0;
  [[nodiscard]] AttentionScores scores(CView documents) const {
    AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, window});
    scores.softcap = softcap;
    if (document > 0) scores.first_keys = documents;
    return scores;
  }
  [[nodiscard]] Shape packed() const { return {B, T, layout.packed_width()}; }
  [[nodiscard]] Shape out() const { return {B, T, layout.heads * layout.head_width}; }
  [[nodiscard]] Shape statistics() const { return {B, layout.heads, T}; }
  [[nodiscard]] Shape square() const { return {B, layout.heads, T, T}; }
  [[nodiscard]] std::string str() const {
    return "B " + std::to_string(B) + " T " + std::to_string(T) + " heads " +
           std::to_string(layout.heads) + "/" + std::to_string(layout.kv_heads) + " x " +
           std::to_string(layout.head_width) + " window " + std::to_string(window) + " document " +
           std::to_string(document) + " softcap " + std::to_string(softcap);
  }
};

class GpuAttentionSinks : public GpuTest {};

/// By cuDNN, and by tiles of our own.
TEST_F(GpuAttentionSinks, FusedMatchesTheOracle) {
  for (const Size& size : std::vector<Size>{{2, 128, {4, 4, 64}},
                                            {1, 129, {4, 2, 64}},
                                            {3, 77, {3, 3, 32}},
                                            {1, 384, {8, 1, 80}},
                                            {2, 200, {6, 2, 128}, 50},
                                            {2, 200, {6, 2, 128}, 0, 37},
                                            {1, 300, {4, 2, 64}, 90, 61, 2.0}}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Problem problem(dtype);
      problem.input(random_tensor(dtype, size.packed(), 1))
          .input(random_tensor(dtype, size.out(), 2))
          .input(random_tensor(dtype, {size.layout.heads}, 3))
          .output(dtype, size.out())
          .output(DType::f32, size.statistics())
          .output(DType::f32, size.statistics())
          .output(dtype, size.packed())
          .output(DType::f32, {size.layout.heads})
          .fixed(first_keys(size.B, size.T, size.document));
      const auto call = [=](Context& ctx, const Views& v) {
        AttentionScores scores = size.scores(v[8]);
        scores.sinks = {v[2], v[5]};
        attention_forward(ctx, size.layout, scores, v[0], v[3], v[4]);
        attention_backward(ctx, size.layout, scores, v[1], {v[0], v[3], v[4]}, {v[6]});
        attention_sinks_backward(ctx, size.layout, v[1], v[3], v[5], Accumulate::no, v[7]);
      };
      const auto oracle = problem.on_oracle(call);

      const auto found = problem.on_gpu(call);

      const auto expect = [&](std::size_t i, double within, const std::string& what) {
        EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()), within)
            << size.str() << " in " << name_of(dtype) << ", " << what;
      };
      expect(3, 2 * tolerance(dtype), "out");
      expect(4, 1e-3, "log_sum_exp");
      expect(5, 1e-2, "weights");
      expect(6, 2 * tolerance(dtype), "dqkv");
      expect(7, 4 * tolerance(dtype), "dlogits");
      const auto again = problem.on_gpu(call);
      EXPECT_TRUE(same_bits(found[7].view(), again[7].view())) << "the sum has one order";
    }
  }
}

TEST_F(GpuAttentionSinks, ReferenceMatchesTheOracleWithAndWithoutDropout) {
  StepState state;
  state.input.step = 11;
  for (const Size& size : std::vector<Size>{{1, 1, {1, 1, 1}},
                                            {2, 33, {4, 2, 17}},
                                            {1, 131, {2, 2, 32}, 40},
                                            {1, 1100, {1, 1, 16}, 200, 300},
                                            {2, 48, {4, 1, 24}, 0, 20, 0.7}}) {
    for (const DType dtype : kGpuTypes) {
      for (const float probability : {0.0F, 0.25F}) {
        std::vector<double> positions;
        for (Dim b = 0; b < size.B; ++b) positions.push_back(static_cast<double>(5 * b + 3));
        Problem problem(dtype);
        problem.input(random_tensor(dtype, size.packed(), 1))
            .input(random_tensor(dtype, size.out(), 2))
            .input(random_tensor(dtype, {size.layout.heads}, 3))
            .output(dtype, size.out())
            .output(dtype, size.square())
            .output(DType::f32, size.statistics())
            .input(poisoned(dtype, size.square()))
            .output(dtype, size.packed())
            .fixed(tensor_of(DType::i64, {size.B}, positions))
            .fixed(bytes_of(state))
            .fixed(first_keys(size.B, size.T, size.document));
        // Scores and probabilities are rounded to 16 bits between the GEMMs.
        problem.expect_match(
            [=](Context& ctx, const Views& v) {
              ctx.set_deterministic(true);
              const Dropout dropout = {probability, 77, 6, v[8], struct_at<StepState>(v[9])};
              AttentionScores scores = size.scores(v[10]);
              scores.sinks = {v[2], v[5]};
              attention_reference_forward(ctx, size.layout, scores, v[0], dropout, v[3], v[4]);
              attention_reference_backward(ctx, size.layout, scores, v[1], {v[0], v[4], dropout},
                                           v[6], v[7]);
            },
            size.str(), dtype == DType::f32 ? 1.0 : 3.0);
      }
    }
  }
}

/// Sums over many rows, in parts.
TEST_F(GpuAttentionSinks, GradientMatchesTheOracle) {
  for (const DType dtype : kGpuTypes) {
    for (const auto& [B, T, heads, width] : std::vector<std::array<Dim, 4>>{
             {1, 1, 1, 1}, {2, 7, 3, 5}, {3, 129, 4, 64}, {2, 700, 9, 80}}) {
      const HeadLayout layout = {heads, heads, width};
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {B, T, heads * width}, 1))
            .input(random_tensor(dtype, {B, T, heads * width}, 2))
            .input(random_tensor(DType::f32, {B, heads, T}, 3))
            .in_out(random_tensor(DType::f32, {heads}, 4), 1.0);
        problem.expect_match(
            [=](Context& ctx, const Views& v) {
              attention_sinks_backward(ctx, layout, v[0], v[1], v[2], accumulate, v[3]);
            },
            "attention_sinks_backward of " + std::to_string(heads), 2);
      }
    }
  }
}

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
