// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// y[b, t] = scale * table[tokens[b, t]] + positions[first_position + t].
/// tokens: (B, T) i32 below V; table: (V, C); positions: (T_max, C) or absent; y: (B, T, C).
void embedding_forward(Context& ctx, CView tokens, CView table, CView positions, Dim first_position,
                       float scale, View y);

/// dtable[v] (+)= scale * sum of dy over the places of token v, in ascending order of place, so
/// that the result is deterministic. order: (B * T) i32, the places sorted by token, stable (the
/// loader makes it). dy: (B, T, C); dtable: (V, C) f32 (f64 for f64); Accumulate::no also clears
/// the rows of absent tokens.
void embedding_backward(Context& ctx, CView tokens, CView order, CView dy, float scale,
                        Accumulate accumulate, View dtable);

/// dpositions[t] (+)= sum over b of dy[b, t], for t < T; with Accumulate::no rows from T on are
/// cleared. dy: (B, T, C); dpositions: (T_max, C) f32 (f64 for f64).
void position_backward(Context& ctx, CView dy, Accumulate accumulate, View dpositions);

/// The fixed table of Vaswani et al. 2017, section 3.5: sin in even, cos in odd columns.
/// table: (T_max, C), f32 or f64. Setup only.
void sinusoidal_table(Context& ctx, View table);

}  // namespace hyperslab::ops
