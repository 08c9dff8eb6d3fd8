// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::ops {

/// Coefficients a, b, c of one Newton-Schulz step, x' = a x + (b A + c A A) x with A = x x^T
/// (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks").
inline constexpr std::array<float, 3> kNewtonSchulz = {3.4445F, -4.7750F, 2.0315F};
inline constexpr int kNewtonSchulzSteps = 5;
/// Least norm that a matrix is divided by, as in torch.optim.Muon.
inline constexpr float kLeastNorm = 1e-7F;

/// First half of a Muon update, of one matrix, in the form of torch.optim.Muon with nesterov:
///   g = gradient * clip_scale; b = momentum * b + (1 - momentum) * g
///   direction = momentum * b + (1 - momentum) * g
/// If state->skip is 1, the average stays and the direction is zero. All flat, f32 (f64 for f64).
void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction);

/// Second half: master -= lr * (scale * direction + decay * master), and the copy in the compute
/// dtype. Nothing changes if state->skip is 1. `operands`: as of adamw; its gradient is the
/// direction, and its decay is not read.
void muon_update(Context& ctx, float scale, float decay, const StepState* state,
                 const UpdateOperands& operands);

/// y = scale * x; equal shapes, f32 or f64; y may alias x.
void scale(Context& ctx, float scale, CView x, View y);

/// x /= max(sqrt(sums[kSumNormSquared]), kLeastNorm).
void divide_by_norm(Context& ctx, CView sums, View x);

/// What orthogonalize writes to besides its matrix; all in the matrix's dtype.
struct OrthogonalizeSpace {
  View other;       ///< (elements of the matrix)
  View gram;        ///< (square of its smaller dimension)
  View polynomial;  ///< likewise
  View sums;        ///< (kSumCount)
};

/// The nearest orthogonal matrix, about: kNewtonSchulzSteps of the iteration above on x / |x|,
/// which take every singular value that is not tiny to about 0.7 to 1.2. x: (M, N), f32 or f64,
/// overwritten; returns the view that holds the result, x or a part of space.other.
[[nodiscard]] View orthogonalize(Context& ctx, View x, const OrthogonalizeSpace& space);

}  // namespace hyperslab::ops
