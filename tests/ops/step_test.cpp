// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/optimizer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Step : public OpsTest {
 protected:
  StepState state;
  std::array<StepResult, kResultRing> results{};
  StepResult result;  ///< of the step that was finalized last
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 9);

  void begin(std::int64_t step, float stop = 0) {
    begin_step(ctx, {step, 0.125F, 0.5F, 0.25F, stop}, &state, sums.view());
  }
  void finalize(const FinalizeConstants& constants) {
    finalize_step(ctx, constants, sums.view(), &state, results.data());
    result = results[static_cast<std::size_t>(state.input.step % kResultRing)];
  }
  void set(SumIndex index, double value) {
    sums.view().data<float>()[index] = static_cast<float>(value);
  }
};

TEST_F(Step, BeginWritesTheInputAndClearsTheSums) {
  state.loss_scale = 8;

  begin(3, 1);

  EXPECT_EQ(state.input.step, 3);
  EXPECT_EQ(state.input.learning_rate, 0.125F);
  EXPECT_EQ(state.gradient_scale, 4.0F);
  std::vector<double> expected(kSumCount, 0);
  expected[kSumStop] = 1;
  expect_values(sums.view(), expected, 0);
  EXPECT_EQ(state.input.inverse_samples, 0.25F);
}

TEST_F(Step, AFiniteStepAdvancesAdamAndReports) {
  begin(3, 1);
  set(kSumNormSquared, 16);
  set(kSumLoss, 7);
  set(kSumTokens, 5);
  set(kSumCorrect, 2);
  set(kSumCorrect5, 4);
  set(kSumZLoss, 6);
  set(kSumBalance, 8);
  set(kSumRouterZ, 9);
  set(kSumRouterEntropy, 10);
  set(kSumRowsBeyond, 11);
  set(kSumWeights, 14);
  set(kSumKl, 12);
  set(kSumMarked, 13);
  state.adam_step = 1;

  finalize({.clip_norm = 1, .beta1 = 0.5F, .beta2 = 0.75F});

  EXPECT_EQ(state.skip, 0);
  EXPECT_EQ(state.adam_step, 2);
  EXPECT_FLOAT_EQ(state.clip_scale, 0.25F);
  EXPECT_FLOAT_EQ(state.bias_correction1, 0.75F);
  EXPECT_FLOAT_EQ(state.bias_correction2, 0.4375F);
  EXPECT_EQ(result.step, 3);
  EXPECT_EQ(result.loss_sum, 7);
  EXPECT_EQ(result.tokens, 5);
  EXPECT_EQ(result.correct, 2);
  EXPECT_EQ(result.correct5, 4);
  EXPECT_EQ(result.z_loss_sum, 6);
  EXPECT_EQ(result.balance_sum, 8);
  EXPECT_EQ(result.router_z_sum, 9);
  EXPECT_EQ(result.router_entropy_sum, 10);
  EXPECT_EQ(result.rows_beyond, 11);
  EXPECT_EQ(result.loss(), 0.5);
  EXPECT_EQ(result.kl_sum, 12);
  EXPECT_EQ(result.marked, 13);
  EXPECT_EQ(result.gradient_norm, 4);
  EXPECT_EQ(result.learning_rate, 0.125F);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_EQ(result.stop, 1);
}

TEST_F(Step, SmallGradientsAndNoClippingKeepTheirScale) {
  begin(1);
  set(kSumNormSquared, 0.25);
  finalize({.clip_norm = 1});
  EXPECT_EQ(state.clip_scale, 1.0F);
  EXPECT_EQ(result.stop, 0);

  set(kSumNormSquared, 1e6);
  finalize({.clip_norm = 0});
  EXPECT_EQ(state.clip_scale, 1.0F);

  set(kSumNormSquared, 0);
  finalize({.clip_norm = 1});
  EXPECT_EQ(state.clip_scale, 1.0F);
}

TEST_F(Step, WhatIsNotFiniteIsSkipped) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<SumIndex, double> bad[] = {
      {kSumNonFinite, 1}, {kSumNormSquared, inf}, {kSumNormSquared, nan}, {kSumLoss, nan}};
  state.adam_step = 4;
  state.bias_correction1 = 0.5F;
  std::int64_t skipped = 0;
  for (const auto& [index, value] : bad) {
    begin(1);
    set(index, value);

    finalize({.clip_norm = 1});

    EXPECT_EQ(state.skip, 1);
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(state.adam_step, 4);
    EXPECT_EQ(state.bias_correction1, 0.5F);
    EXPECT_EQ(state.loss_scale, 1.0F);
    EXPECT_EQ(state.skipped_steps, ++skipped);
  }
  begin(2);
  finalize({.clip_norm = 1});
  EXPECT_EQ(state.skip, 0);
  EXPECT_EQ(state.adam_step, 5);
}

TEST_F(Step, TheLossScaleHalvesAndDoubles) {
  const FinalizeConstants constants = {.clip_norm = 1, .scale_loss = true, .growth_interval = 3};
  state.loss_scale = 16;
  const auto step = [&](bool finite) {
    begin(1);
    set(kSumNormSquared, 64 * 64);
    if (!finite) set(kSumNonFinite, 1);
    finalize(constants);
  };

  step(true);
  EXPECT_EQ(result.gradient_norm, 4);  // of the gradient without the scale
  EXPECT_FLOAT_EQ(state.clip_scale, 0.25F / 16);
  EXPECT_EQ(result.loss_scale, 16);
  step(false);
  EXPECT_EQ(state.loss_scale, 8);
  EXPECT_EQ(state.good_steps, 0);
  step(true);
  step(true);
  EXPECT_EQ(state.loss_scale, 8);
  step(true);
  EXPECT_EQ(state.loss_scale, 16);
  EXPECT_EQ(state.good_steps, 0);
  EXPECT_EQ(result.loss_scale, 8);  // the one this step was computed with
}

TEST_F(Step, DoubleSumsAreRead) {
  Tensor sums64 = filled_tensor(DType::f64, {kSumCount}, 3);

  begin_step(ctx, {1, 0, 1, 0}, &state, sums64.view());
  sums64.view().data<double>()[kSumNormSquared] = 2;
  finalize_step(ctx, {}, sums64.view(), &state, results.data());
  result = results[1];

  EXPECT_EQ(result.gradient_norm, std::sqrt(2.0));
  EXPECT_EQ(result.tokens, 0);
}

TEST_F(Step, WrongOperandsAreNamed) {
  expect_error_naming("begin_step sums",
                      [&] { begin_step(ctx, {}, &state, sums.view().slice(0, 2)); });
  expect_error_naming("begin_step state", [&] { begin_step(ctx, {}, nullptr, sums.view()); });
  expect_error_naming("finalize_step results",
                      [&] { finalize_step(ctx, {}, sums.view(), &state, nullptr); });
}

}  // namespace
}  // namespace hyperslab::ops
