// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

struct AverageConstants {
  float weight = 0;             ///< factor of the newest weights: 1 - decay
  std::int64_t start_step = 0;  ///< updates before averaging begins
};

/// An exponential moving average of weights (Polyak & Juditsky 1992; Tarvainen & Valpola 2017, in
/// the form of torch.optim.swa_utils), after the update that finalize_step counted last:
///   average = master if state->adam_step is at most start_step + 1, else
///   average += weight * (master - average)
/// If state->skip is 1 nothing changes. master, average: flat, f32 (f64 for f64), of equal size.
void average_weights(Context& ctx, const AverageConstants& constants, const StepState* state,
                     CView master, View average);

/// Exchanges the elements of two flat views of one size and dtype, f32 or f64.
void exchange(Context& ctx, View a, View b);

}  // namespace hyperslab::ops
