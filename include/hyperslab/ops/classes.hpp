// SPDX-License-Identifier: Apache-2.0
// The two ends of a vision transformer, besides products and norms.
#pragma once

#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// Embedded patches with a class token before them and positions: y[b, 0] = class_token +
/// positions[0], y[b, 1 + n] = patches[b, n] + positions[1 + n] (Dosovitskiy et al. 2021, eq. 1);
/// without a class token y[b, n] = patches[b, n] + positions[n]. patches: (B, N, C); class_token:
/// (C) or absent; positions: (T, C) or absent; y: (B, T, C) with T = N, or N + 1 with a class
/// token. Not aliased. Sums in f32 or better.
void patch_tokens_forward(Context& ctx, CView patches, CView class_token, CView positions, View y);

/// dy: (B, T, C) -> dpatches: (B, N, C), overwritten; dclass_token: (C) and dpositions: (T, C),
/// sums over the samples in ascending order, each absent or added to or overwritten.
/// The class token has a row of dy if T = N + 1.
void patch_tokens_backward(Context& ctx, CView dy, Accumulate accumulate, View dpatches,
                           View dclass_token, View dpositions);

/// Rows of sinusoids of a grid of patches: with w = C / 4 and omega_i = 10000^(-i / w), row (r, c)
/// of the grid is sin(c omega), cos(c omega), sin(r omega), cos(r omega), each w long (Chen et al.
/// 2021, "An empirical study of training self-supervised vision transformers"). table: (T, C), C a
/// multiple of 4; its first T - grid^2 rows, of a class token, are 0.
void sincos2d_table(Context& ctx, Dim grid, View table);

/// Which rows of a stream this rank holds: rows [first, first + rows here) of the B T ones of a
/// microbatch in order of (b, t), and the rows pooled of every sample.
struct PooledRows {
  Dim B = 0;
  Dim T = 0;
  Dim first = 0;
  bool token = true;  ///< row 0 of a sample; else the mean of all T
  [[nodiscard]] Dim pooled() const { return token ? 1 : T; }
};
/// pooled[b] = the sum of the pooled rows of sample b that are here, of residual + delta, over how
/// many are pooled. residual: (..., C); delta: the same or absent; pooled: (B, C) in f32 (f64 for
/// f64). Sums in ascending order of t.
void pool_rows_forward(Context& ctx, const PooledRows& rows, CView residual, CView delta,
                       View pooled);
/// dx = the gradient of the stream's rows, overwritten. dpooled: (B, C) of any floating type.
void pool_rows_backward(Context& ctx, const PooledRows& rows, CView dpooled, View dx);

/// Rows of a class head: logits: (B, columns) of which the first `classes` count; labels: (B, 2)
/// i32 below `classes`, or kIgnoredTarget as the first if the row does not count; weights: (B) f32
/// of the first label, the second has the rest.
struct ClassRows {
  View logits;
  Dim classes = 0;
  CView labels;
  CView weights;
};
/// Cross-entropy with smoothed labels (Szegedy et al. 2016, section 7) and two labels a row (Zhang
/// et al. 2018): with p = softmax(logits) and q = sum over the labels of weight ((1 - smoothing)
/// onehot + smoothing / classes), loss -sum q log p and, with a gradient, logits = (p - q)
/// state.gradient_scale, zero in rows that do not count and in columns beyond `classes`. sums:
/// loss, tokens (rows that count), correct and correct5 (the label of more weight, of equal ones
/// the first, is the largest logit or among the five largest; of equal logits the first come
/// first). Statistics are f32 or better; sums over rows are deterministic.
void class_cross_entropy(Context& ctx, const ClassRows& rows, double smoothing,
                         const StepState* state, WithGradient gradient, View sums);

}  // namespace hyperslab::ops
