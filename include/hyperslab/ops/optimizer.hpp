// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

/// Elements of a flat span that share one entry of its tables of weight decays and of rates;
/// tensors start at multiples of it.
inline constexpr Dim kDecayGranule = 32;

/// The operands of every update. All flat and of equal size, but for `decay` and `rate`.
struct UpdateOperands {
  View master;     ///< f32 (f64 for f64)
  CView gradient;  ///< likewise, or bf16
  View value;      ///< copy in the compute dtype; absent if ops read the masters
  CView decay;     ///< f32, one weight decay for every kDecayGranule elements
  /// f32, one factor of the learning rate for every kDecayGranule elements; absent: 1. Of adamw.
  CView rate = {};
};

/// Which weights decoupled weight decay acts on: all, or those alone that the update moves towards
/// zero, too (Chen et al. 2025, "Cautious weight decay").
enum class DecayRule : std::uint8_t { all, cautious };

struct AdamWConstants {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  DecayRule decay_rule = DecayRule::all;
};

/// One AdamW update (Loshchilov & Hutter 2019, algorithm 2, decay decoupled and scaled by the
/// learning rate) of every element:
///   g = gradient * clip_scale; m, v as Adam; master -= lr * rate * (m_hat / (sqrt(v_hat) + eps) +
///   decay * master)
/// All scalars come from `state`; if state->skip is 1 nothing changes. exp_avg, exp_avg_sq: as
/// master, or both bf16 beside f32: then m and v are rounded stochastically when they are stored,
/// for terms far smaller than a moment would be lost by rounding to nearest.
void adamw(Context& ctx, const AdamWConstants& constants, const StepState* state,
           const UpdateOperands& operands, View exp_avg, View exp_avg_sq);

/// One update of stochastic gradient descent with momentum (Sutskever et al. 2013, in the form of
/// torch.optim.SGD with dampening 0) of every element:
///   g = gradient * clip_scale + decay * master; b = momentum * b + g; master -= lr * b
/// Scalars as for adamw. momentum_buffer: as master, zero before the first update.
void sgd(Context& ctx, float momentum, const StepState* state, const UpdateOperands& operands,
         View momentum_buffer);

/// sums[kSumNormSquared] += sum of squares, sums[kSumNonFinite] += count of non-finite elements of
/// the flat view; deterministic.
void add_norm_squared(Context& ctx, CView gradient, View sums);

/// Writes the host's input, derives gradient_scale, clears `sums` and sets its stop request.
void begin_step(Context& ctx, const StepInput& input, StepState* state, View sums);

struct FinalizeConstants {
  float clip_norm = 0;  ///< 0: no clipping
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  bool scale_loss = false;  ///< fp16: halve on non-finite, double after growth_interval
  std::int32_t growth_interval = 2000;
};
/// From the all-reduced sums: skip if anything is not finite, else clip_scale =
/// min(1, clip_norm / norm) / loss_scale (Pascanu et al. 2013), advance adam_step and the bias
/// corrections; adjust the loss scale; write results[step % kResultRing]. `results`: kResultRing
/// entries that the host can read and the device can write.
inline constexpr std::int64_t kResultRing = 4;
void finalize_step(Context& ctx, const FinalizeConstants& constants, CView sums, StepState* state,
                   StepResult* results);

}  // namespace hyperslab::ops
