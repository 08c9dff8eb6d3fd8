// SPDX-License-Identifier: Apache-2.0
// Problems of attention, for the tests of every device and for those of kernels.
#pragma once

#include "devices/problem.hpp"
#include "ops/attention_case.hpp"

namespace hyperslab::ops::test {

constexpr AttentionMask windowed(Dim window) { return {AttentionMask::Kind::causal, window}; }

inline std::vector<AttentionSize> fused_sizes() {
  return {{2, 128, {4, 4, 64}},          {1, 129, {4, 2, 64}},
          {3, 77, {3, 3, 32}},           {2, 200, {6, 2, 128}},
          {1, 384, {8, 1, 80}},          {1, 96, {2, 1, 256}},
          {1, 1024, {2, 2, 64}},         {2, 128, {4, 4, 64}, kNoMask},
          {1, 129, {4, 2, 64}, kNoMask}, {2, 200, {6, 2, 128}, kNoMask}};
}

/// cuDNN's windows; the kernels for documents and capped scores at every width of tiles and beside
/// it, with windows, groups of heads, tiles that end early and documents in many tiles or in one.
inline std::vector<AttentionSize> interval_sizes() {
  return {{2, 256, {4, 4, 64}, windowed(100)},
          {1, 300, {4, 2, 128}, windowed(1)},
          {1, 129, {2, 2, 64}, windowed(500)},
          {1, 200, {2, 1, 256}, windowed(64)},
          {2, 256, {4, 4, 64}, kCausal, 50},
          {3, 77, {3, 3, 32}, kCausal, 9},
          {2, 333, {6, 2, 128}, kCausal, 130},
          {1, 500, {8, 1, 80}, kCausal, 3},
          {1, 1, {2, 1, 8}, kCausal, 5},
          {1, 65, {2, 1, 256}, kCausal, 64},
          {1, 700, {2, 2, 64}, windowed(150), 400},
          {2, 200, {4, 2, 64}, kCausal, 0, 0, 2.0},
          {1, 321, {4, 2, 128}, kCausal, 0, 0, 0.5},
          {1, 130, {2, 1, 256}, windowed(70), 0, 0.1, 1.5},
          {1, 400, {4, 1, 96}, windowed(90), 170, 0.2, 3.0}};
}

/// qkv, dout, out, log_sum_exp, dqkv, first keys, the gradient of the bias of qkv.
inline Problem fused_problem(const AttentionSize& size, DType dtype) {
  Problem problem(dtype);
  problem.input(random_tensor(dtype, size.packed(), 1))
      .input(random_tensor(dtype, size.out(), 2))
      .output(dtype, size.out())
      .output(DType::f32, size.statistics())
      .output(dtype, size.packed())
      .fixed(first_keys(size.B, size.T, size.document))
      .in_out(random_tensor(DType::f32, {size.layout.packed_width()}, 3));
  if (dtype == DType::f32) problem.only_on(Device::cpu);  // GPUs have none in f32
  return problem;
}

inline Problem::Call fused_call(const AttentionSize& size, bool deterministic) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_deterministic(deterministic);
    const AttentionScores scores = size.scores(v[5]);
    attention_forward(ctx, size.layout, scores, v[0], v[2], v[3]);
    attention_backward(ctx, size.layout, scores, v[1], {v[0], v[2], v[3]},
                       {v[4], v[6], Accumulate::yes});
  };
}

/// EXPECTs the results of fused_call() to be those of the oracle.
inline void expect_fused(const Results& found, const Results& oracle, DType dtype,
                         const std::string& what) {
  const double within = tolerance(dtype);
  const auto expect = [&](std::size_t i, double of, const char* name) {
    EXPECT_LE(relative_difference(found[i].view(), oracle[i].view()), of) << what << ", " << name;
  };
  expect(2, within, "out");
  expect(3, std::min(within, 1e-3), "log_sum_exp");
  expect(4, 2 * within, "dqkv");
  expect(6, within, "dbias");
}

/// qkv, dout, out, probabilities, dprobabilities (scratch), dqkv, positions, state, first keys.
inline Problem reference_problem(const AttentionSize& size, DType dtype) {
  std::vector<double> positions;
  for (Dim b = 0; b < size.B; ++b) positions.push_back(static_cast<double>(5 * b + 3));
  StepState state;
  state.input.step = 11;
  Problem problem(dtype);
  problem.input(random_tensor(dtype, size.packed(), 1))
      .input(random_tensor(dtype, size.out(), 2))
      .output(dtype, size.out())
      .output(dtype, size.square())
      .input(poisoned(dtype, size.square()))
      .output(dtype, size.packed())
      .fixed(tensor_of(DType::i64, {size.B}, positions))
      .fixed(bytes_of(state))
      .fixed(first_keys(size.B, size.T, size.document));
  return problem;
}

/// `mask`: the probability of dropout, and the heads whose mask is drawn.
inline Problem::Call reference_call(const AttentionSize& size, const Dropout& mask) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_deterministic(true);
    Dropout dropout = mask;
    dropout.seed = 77;
    dropout.site = 6;
    dropout.sample_position = v[6];
    dropout.state = struct_at<StepState>(v[7]);
    const AttentionScores scores = size.scores(v[8]);
    attention_reference_forward(ctx, size.layout, scores, v[0], dropout, v[2], v[3]);
    attention_reference_backward(ctx, size.layout, scores, v[1], {v[0], v[3], dropout}, v[4], v[5]);
  };
}

}  // namespace hyperslab::ops::test
