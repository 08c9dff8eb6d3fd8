// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

__global__ void begin_step_kernel(StepInput input, StepState* state, float* sums) {
  overlap();
  wait_for_earlier();
  if (threadIdx.x < kSumCount) {
    sums[threadIdx.x] = threadIdx.x == kSumStop ? input.stop_request : 0.0F;
  }
  if (threadIdx.x != 0) return;
  state->input = input;
  state->gradient_scale = input.inverse_weights * state->loss_scale;
}

/// Halves the loss scale after a step that is not finite, doubles it after enough that are.
__device__ void adjust_loss_scale(const FinalizeConstants& constants, StepState& state) {
  if (state.skip != 0) {
    state.loss_scale *= 0.5F;
    state.good_steps = 0;
  } else if (++state.good_steps >= constants.growth_interval) {
    state.loss_scale *= 2.0F;
    state.good_steps = 0;
  }
}

__device__ void accept(const FinalizeConstants& constants, double norm, StepState& state) {
  const double clip = constants.clip_norm > 0 && norm > constants.clip_norm
                          ? static_cast<double>(constants.clip_norm) / norm
                          : 1.0;
  state.clip_scale = static_cast<float>(clip / static_cast<double>(state.loss_scale));
  ++state.adam_step;
  const auto step = static_cast<double>(state.adam_step);
  state.bias_correction1 =
      static_cast<float>(1.0 - pow(static_cast<double>(constants.beta1), step));
  state.bias_correction2 =
      static_cast<float>(1.0 - pow(static_cast<double>(constants.beta2), step));
}

/// The host may read while the device writes: the step's number comes last and makes it valid.
__device__ void publish(const StepResult& result, StepResult* to) {
  volatile StepResult* out = to;
  out->step = 0;
  __threadfence_system();
  out->loss_sum = result.loss_sum;
  out->tokens = result.tokens;
  out->correct = result.correct;
  out->correct5 = result.correct5;
  out->z_loss_sum = result.z_loss_sum;
  out->balance_sum = result.balance_sum;
  out->router_z_sum = result.router_z_sum;
  out->router_entropy_sum = result.router_entropy_sum;
  out->rows_beyond = result.rows_beyond;
  out->weights = result.weights;
  out->kl_sum = result.kl_sum;
  out->marked = result.marked;
  out->gradient_norm = result.gradient_norm;
  out->learning_rate = result.learning_rate;
  out->loss_scale = result.loss_scale;
  out->skipped_steps = result.skipped_steps;
  out->skipped = result.skipped;
  out->stop = result.stop;
  __threadfence_system();
  out->step = result.step;
  __threadfence_system();
}

__global__ void finalize_step_kernel(FinalizeConstants constants, const float* sums,
                                     StepState* device, StepResult* results) {
  overlap();
  wait_for_earlier();
  StepState state = *device;
  const double norm_squared = sums[kSumNormSquared];
  const double loss = sums[kSumLoss];
  const double norm = sqrt(norm_squared) / static_cast<double>(state.loss_scale);
  const bool finite = sums[kSumNonFinite] == 0 && isfinite(norm_squared) && isfinite(loss);
  const float loss_scale = state.loss_scale;
  state.skip = finite ? 0 : 1;
  if (finite) {
    accept(constants, norm, state);
  } else {
    ++state.skipped_steps;
  }
  publish({.step = state.input.step,
           .loss_sum = loss,
           .tokens = sums[kSumTokens],
           .correct = sums[kSumCorrect],
           .correct5 = sums[kSumCorrect5],
           .z_loss_sum = sums[kSumZLoss],
           .balance_sum = sums[kSumBalance],
           .router_z_sum = sums[kSumRouterZ],
           .router_entropy_sum = sums[kSumRouterEntropy],
           .rows_beyond = sums[kSumRowsBeyond],
           .weights = sums[kSumWeights],
           .kl_sum = sums[kSumKl],
           .marked = sums[kSumMarked],
           .gradient_norm = norm,
           .learning_rate = state.input.learning_rate,
           .loss_scale = loss_scale,
           .skipped_steps = state.skipped_steps,
           .skipped = finite ? 0 : 1,
           .stop = sums[kSumStop] > 0 ? 1 : 0},
          results + state.input.step % kResultRing);
  if (constants.scale_loss) adjust_loss_scale(constants, state);
  *device = state;
}

}  // namespace

void begin_step(Context& ctx, const StepInput& input, StepState* state, View sums) {
  launch_waiting(ctx, "begin_step", kOneBlock, begin_step_kernel, {1, 32}, input, state,
                 sums.data<float>());
}

void finalize_step(Context& ctx, const FinalizeConstants& constants, CView sums, StepState* state,
                   StepResult* results) {
  launch_waiting(ctx, "finalize_step", kOneBlock, finalize_step_kernel, {1, 1}, constants,
                 sums.data<float>(), state, results);
}

}  // namespace hyperslab::ops::cuda
