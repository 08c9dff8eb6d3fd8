// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "workspace.hpp"

namespace hyperslab::ops::cuda {

/// dbias (+)= column sums of dy, for the gradient of a bias; deterministic. dy: (..., M) in f32,
/// bf16 or f16; dbias: (M) in f32 or bf16. Takes column_sums_partials(rows, M) bytes of the
/// context's partials.
void column_sums(Context& ctx, CView dy, Accumulate accumulate, View dbias);

/// The destination of sum_partials: columns [i C, (i + 1) C) to out[i], which may be absent; (C) in
/// f32 or bf16.
struct PartialSums {
  Dim rows;              ///< rows summed by the pass that left the partial sums
  const float* partial;  ///< `parts` rows, `stride` elements apart
  int parts;
  Dim stride;
  Dim C;
  bool accumulate;
  View out[4];
};
/// out (+)= partial[0] + partial[1] + ... column by column in a fixed order; with deferred
/// reductions (ops::with_deferred_reductions) when these are finished. `partial` lies in the
/// context's partials.
void sum_partials(Context& ctx, const char* op, const PartialSums& sums);

/// Partial sums of squares of a flat view in double, sum_of_squares_blocks(count) of them, in the
/// context's workspace.
const SquareSum* sum_of_squares(Context& ctx, const char* op, CView x);

}  // namespace hyperslab::ops::cuda
