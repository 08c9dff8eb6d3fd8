// SPDX-License-Identifier: Apache-2.0
#include "attention_problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class AttentionSinks : public DevicesTest {};

/// By cuDNN, and by tiles of our own.
TEST_F(AttentionSinks, FusedMatchesTheOracle) {
  for (const AttentionSize& size :
       std::vector<AttentionSize>{{2, 128, {4, 4, 64}},
                                  {1, 129, {4, 2, 64}},
                                  {3, 77, {3, 3, 32}},
                                  {1, 384, {8, 1, 80}},
                                  {2, 200, {6, 2, 128}, windowed(50)},
                                  {2, 200, {6, 2, 128}, kCausal, 37},
                                  {1, 300, {4, 2, 64}, windowed(90), 61, 0, 2.0}}) {
    for (const DType dtype : compute_types()) {
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
      if (dtype == DType::f32) problem.only_on(Device::cpu);  // GPUs have none in f32
      const auto oracle = problem.on_oracle(call);
      for (const Device device : problem.devices()) {
        const auto found = problem.on(device, call);
        const auto expect = [&](std::size_t i, double within, const std::string& what) {
          EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()), within)
              << size.str() << " in " << name_of(dtype) << " on " << name_of(device) << ", "
              << what;
        };
        expect(3, 2 * tolerance(dtype), "out");
        expect(4, std::min(tolerance(dtype), 1e-3), "log_sum_exp");
        expect(5, std::min(2 * tolerance(dtype), 1e-2), "weights");
        expect(6, 2 * tolerance(dtype), "dqkv");
        expect(7, 4 * tolerance(dtype), "dlogits");
        const auto again = problem.on(device, call);
        EXPECT_TRUE(same_bits(found[7].view(), again[7].view())) << "the sum has one order";
      }
    }
  }
}

TEST_F(AttentionSinks, ReferenceMatchesTheOracleWithAndWithoutDropout) {
  StepState state;
  state.input.step = 11;
  for (const AttentionSize& size :
       std::vector<AttentionSize>{{1, 1, {1, 1, 1}},
                                  {2, 33, {4, 2, 17}},
                                  {1, 131, {2, 2, 32}, windowed(40)},
                                  {1, 1100, {1, 1, 16}, windowed(200), 300},
                                  {2, 48, {4, 1, 24}, kCausal, 20, 0, 0.7}}) {
    for (const DType dtype : compute_types()) {
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
TEST_F(AttentionSinks, GradientMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
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

}  // namespace
}  // namespace hyperslab::ops
