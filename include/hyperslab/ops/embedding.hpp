// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops {

/// y[b, t] = scale * table[tokens[b, t] - shard.first] + positions[first_position + t]; of a token
/// outside the shard only the position stays, so that the sum over the ranks of a vocabulary is
/// whole where one of them has positions. tokens: (B, T) i32 below shard.vocabulary (on the CPU
/// an Error, on a GPU not-a-number where not); table: (rows, C), rows >= shard.count; positions:
/// (T_max, C) or absent; y: (B, T, C).
void embedding_forward(Context& ctx, CView tokens, CView table, const VocabularyShard& shard,
                       CView positions, Dim first_position, float scale, View y);

/// dtable[v - shard.first] (+)= scale * sum of dy over the places of token v, in ascending order of
/// place, so that the result is deterministic; tokens outside the shard are skipped. sort_index: (B
/// * T) i32, the places sorted by token, stable (the loader makes it). dy: (B, T, C); dtable:
/// (rows, C) f32 (f64 for f64), rows >= shard.count; Accumulate::no also clears the rows of absent
/// tokens and of padding, Accumulate::yes leaves them as they are.
void embedding_backward(Context& ctx, CView tokens, CView sort_index, CView dy,
                        const VocabularyShard& shard, float scale, Accumulate accumulate,
                        View dtable);

/// dpositions[t] (+)= sum over b of dy[b, t], for t < T; with Accumulate::no rows from T on are
/// cleared. dy: (B, T, C); dpositions: (T_max, C) f32 (f64 for f64).
void position_backward(Context& ctx, CView dy, Accumulate accumulate, View dpositions);

/// The fixed table of Vaswani et al. 2017, section 3.5: sin in even, cos in odd columns.
/// table: (T_max, C), f32 or f64; on a GPU f32, bf16 or f16. Setup only.
void sinusoidal_table(Context& ctx, View table);

}  // namespace hyperslab::ops
