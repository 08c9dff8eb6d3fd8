// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::ops {

/// Values that the host decides for one step, written to device memory before the step's first op.
/// No kernel takes these by value, so that a captured graph can be replayed.
struct StepInput {
  std::int64_t step = 0;  ///< counts from 1; keys the dropout masks
  float learning_rate = 0;
  float inverse_weights = 0;  ///< 1 / the global batch's sum of weights, see kSumWeights
  float inverse_samples = 0;  ///< 1 / samples of the global batch
  float stop_request = 0;     ///< 1 if this rank was asked to stop
};

/// Values that the device decides and keeps from step to step.
struct StepState {
  StepInput input;
  std::int64_t adam_step = 0;   ///< updates done; a skipped step does not advance it
  float gradient_scale = 1;     ///< inverse_weights * loss_scale, multiplies dlogits
  float loss_scale = 1;         ///< 1 but for fp16
  float clip_scale = 1;         ///< multiplies gradients in the update; holds 1 / loss_scale too
  float bias_correction1 = 1;   ///< 1 - beta1^adam_step
  float bias_correction2 = 1;   ///< 1 - beta2^adam_step
  std::int32_t skip = 0;        ///< 1: this step's gradients are not finite, nothing is updated
  std::int32_t good_steps = 0;  ///< finite steps since the loss scale last changed
  std::int64_t skipped_steps = 0;
};

/// Indices of the vector that is all-reduced over the world once a step. dtype: f32, or f64 if the
/// model computes in f64.
enum SumIndex : int {
  kSumNormSquared = 0,  ///< squared norm of the gradients, each element counted once
  kSumNonFinite,        ///< gradients that are not finite
  kSumLoss,             ///< loss times weight, summed over counted tokens; of pairs if it is theirs
  kSumTokens,           ///< counted tokens
  kSumCorrect,          ///< counted tokens of which the largest logit is the target's
  kSumCorrect5,         ///< images whose class is among the five largest logits
  kSumZLoss,            ///< z-loss, summed over counted tokens
  kSumBalance,          ///< balance of routers, summed over their layers and samples (experts.hpp)
  kSumRouterZ,          ///< mean log(Z)^2 of routers' logits, likewise
  kSumRouterEntropy,    ///< mean entropy of routers' scores in nats, likewise
  kSumRowsBeyond,       ///< rows of experts that memory did not hold at once, over all layers
  kSumWeights,          ///< weights of counted tokens (1 unless files give them), or pairs
  kSumKl,               ///< divergence from the reference times weight, of a clipped loss
  kSumMarked,  ///< tokens whose ratio was clipped, or pairs whose chosen answer is preferred
  kSumStop,    ///< ranks that were asked to stop
  kSumCount
};

/// Results of a step, which the host reads two steps later.
struct StepResult {
  std::int64_t step = 0;
  double loss_sum = 0;
  double tokens = 0;
  double correct = 0;
  double correct5 = 0;
  double z_loss_sum = 0;
  double balance_sum = 0;         ///< SumIndex::kSumBalance
  double router_z_sum = 0;        ///< SumIndex::kSumRouterZ
  double router_entropy_sum = 0;  ///< SumIndex::kSumRouterEntropy
  double rows_beyond = 0;         ///< SumIndex::kSumRowsBeyond
  double weights = 0;             ///< SumIndex::kSumWeights
  double kl_sum = 0;              ///< SumIndex::kSumKl
  double marked = 0;              ///< SumIndex::kSumMarked
  double gradient_norm = 0;       ///< norm of the unscaled gradient, before clipping
  float learning_rate = 0;
  float loss_scale = 1;
  std::int64_t skipped_steps = 0;  ///< up to here, over the whole run
  std::int32_t skipped = 0;
  std::int32_t stop = 0;

  [[nodiscard]] double loss() const { return loss_sum / weights; }
};

}  // namespace hyperslab::ops
