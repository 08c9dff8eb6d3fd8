// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// One of the outputs that a low-rank product adds to: columns [first, first + count) of y.
struct LowRankPart {
  Dim first = 0;
  Dim count = 0;
  CView b;  ///< (count, R)
  View db;  ///< (count, R) in f32 (f64 for f64)
};

/// The gradients that the second factor of y_i += u_i B_i^T leaves: du_i = scale dy_i B_i and
/// dB_i (+)= dy_i^T u_i, where y_i are the columns of part i and u_i columns [i R, (i + 1) R) of u.
/// Hu et al. 2022, "LoRA", section 4.1, has y_i without the gradients. dy: (..., C); u and du:
/// (..., parts R), all of one dtype. A GPU reads dy once if it can (bf16 and f16, R of 8, 16 or 32,
/// at most four parts, columns in multiples of 8, 192 KB of shared memory for R of 32); then no
/// operand may lie in the context's workspace, which it uses.
void low_rank_backward(Context& ctx, CView dy, const std::vector<LowRankPart>& parts, CView u,
                       float scale, Accumulate accumulate, View du);

}  // namespace hyperslab::ops
