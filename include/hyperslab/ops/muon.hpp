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

/// First half of a Muon update, of any elements, in the form of torch.optim.Muon with nesterov:
///   g = gradient * clip_scale; b = momentum * b + (1 - momentum) * g
///   direction = momentum * b + (1 - momentum) * g
/// If state->skip is 1, the average stays and the direction is zero. All flat, f32 (f64 for f64);
/// the gradient may be bf16.
void muon_direction(Context& ctx, float momentum, const StepState* state, CView gradient,
                    View average, View direction);

/// Second half: master -= lr * (direction + decay * master), and the copy in the compute dtype.
/// Nothing changes if state->skip is 1. `operands`: as of adamw; its gradient is the direction,
/// orthogonalized and scaled, and its decay is not read.
void muon_update(Context& ctx, float decay, DecayRule rule, const StepState* state,
                 const UpdateOperands& operands);

// Batches of matrices: (B, M, N), one matrix after the other.

/// y[i] = x[i] / max(|x[i]|, kLeastNorm) with the Frobenius norm, summed in double. x: f32 or f64;
/// y: the same dtype, and may alias x, or bf16.
void normalize_matrices(Context& ctx, CView x, View y);

/// The smaller of the two Gram matrices: gram[i] = x[i] x[i]^T of wide matrices, x[i]^T x[i] of
/// tall ones. x: (B, M, N); gram: (B, m, m) of the same dtype with m = min(M, N).
void matmul_gram(Context& ctx, CView x, View gram);

struct ProductScales {
  float product = 1;
  float addend = 1;
};
/// c[i] = scales.product a[i] b[i] + scales.addend d[i]. a: (B, M, K); b: (B, K, N); c, d: (B, M,
/// N); one dtype. c may not alias another operand. On a GPU d is aligned as c is.
void matmul_add(Context& ctx, const ProductScales& scales, CView a, CView b, CView d, View c);

/// The scratch memory of orthogonalize; flat, of the dtype in which it multiplies: its matrices'
/// dtype, or bf16.
struct OrthogonalizeSpace {
  View x;           ///< (B M N); may be the memory of the matrices if that is the dtype
  View other;       ///< (B M N)
  View gram;        ///< (B m m), m = min(M, N)
  View polynomial;  ///< likewise
};

/// The nearest orthogonal matrix, about, of every matrix of a batch: kNewtonSchulzSteps of the
/// iteration above on x / |x|, which take every singular value that is not tiny to about 0.7 to
/// 1.2. x: (B, M, N), f32 or f64; returns the view with the results, a part of space.x or
/// space.other.
[[nodiscard]] View orthogonalize(Context& ctx, CView x, const OrthogonalizeSpace& space);

/// FLOPs of orthogonalize for one matrix.
[[nodiscard]] constexpr double orthogonalize_flops(Dim rows, Dim columns) {
  const auto m = static_cast<double>(rows < columns ? rows : columns);
  const auto n = static_cast<double>(rows < columns ? columns : rows);
  return kNewtonSchulzSteps * (4 * m * m * n + 2 * m * m * m);
}

}  // namespace hyperslab::ops
