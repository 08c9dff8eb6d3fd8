// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// Halves the loss scale after a step that is not finite, doubles it after enough that are.
void adjust_loss_scale(const FinalizeConstants& constants, StepState& state) {
  if (state.skip != 0) {
    state.loss_scale *= 0.5F;
    state.good_steps = 0;
  } else if (++state.good_steps >= constants.growth_interval) {
    state.loss_scale *= 2.0F;
    state.good_steps = 0;
  }
}

void accept(const FinalizeConstants& constants, double norm, StepState& state) {
  const double clip = constants.clip_norm > 0 && norm > constants.clip_norm
                          ? static_cast<double>(constants.clip_norm) / norm
                          : 1.0;
  state.clip_scale = static_cast<float>(clip / static_cast<double>(state.loss_scale));
  ++state.adam_step;
  const auto step = static_cast<double>(state.adam_step);
  state.bias_correction1 =
      static_cast<float>(1.0 - std::pow(static_cast<double>(constants.beta1), step));
  state.bias_correction2 =
      static_cast<float>(1.0 - std::pow(static_cast<double>(constants.beta2), step));
}

}  // namespace

void begin_step(Context&, const StepInput& input, StepState* state, View sums) {
  state->input = input;
  state->gradient_scale = input.inverse_weights * state->loss_scale;
  with_real(sums.dtype(), "begin_step", [&]<class T>(T) {
    std::ranges::fill(sums.span<T>(), T(0));
    sums.data<T>()[kSumStop] = T(input.stop_request);
  });
}

void finalize_step(Context&, const FinalizeConstants& constants, CView sums, StepState* state,
                   StepResult* results) {
  const double norm_squared = read_sums(sums, kSumNormSquared);
  const double loss = read_sums(sums, kSumLoss);
  const double norm = std::sqrt(norm_squared) / static_cast<double>(state->loss_scale);
  const bool finite =
      read_sums(sums, kSumNonFinite) == 0 && std::isfinite(norm_squared) && std::isfinite(loss);
  results[state->input.step % kResultRing] = {
      .step = state->input.step,
      .loss_sum = loss,
      .tokens = read_sums(sums, kSumTokens),
      .correct = read_sums(sums, kSumCorrect),
      .correct5 = read_sums(sums, kSumCorrect5),
      .z_loss_sum = read_sums(sums, kSumZLoss),
      .balance_sum = read_sums(sums, kSumBalance),
      .router_z_sum = read_sums(sums, kSumRouterZ),
      .router_entropy_sum = read_sums(sums, kSumRouterEntropy),
      .rows_beyond = read_sums(sums, kSumRowsBeyond),
      .weights = read_sums(sums, kSumWeights),
      .kl_sum = read_sums(sums, kSumKl),
      .marked = read_sums(sums, kSumMarked),
      .gradient_norm = norm,
      .learning_rate = state->input.learning_rate,
      .loss_scale = state->loss_scale,
      .skipped = finite ? 0 : 1,
      .stop = read_sums(sums, kSumStop) > 0 ? 1 : 0};
  state->skip = finite ? 0 : 1;
  if (finite) {
    accept(constants, norm, *state);
  } else {
    ++state->skipped_steps;
  }
  results[state->input.step % kResultRing].skipped_steps = state->skipped_steps;
  if (constants.scale_loss) adjust_loss_scale(constants, *state);
}

}  // namespace hyperslab::ops::cpu
