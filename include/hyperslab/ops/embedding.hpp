// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/ops/token_position.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops {

/// table: (rows, C) with rows >= shard.count; positions: (T_max, C) or absent. first_keys: (B, T)
/// i32, where in its sample the document of every token begins, from which its position counts:
/// at most t for token t, and not falling along a sample; absent: 0.
struct EmbeddingTables {
  CView table;
  VocabularyShard shard;
  CView positions{};
  TokenPosition first_position{};
  CView first_keys{};
};

/// y[b, t] = scale * table[tokens[b, t] - shard.first]
///           + positions[first_position + t - first_keys[b, t]].
/// A token outside the shard gets only its position, so that the sum over the ranks of a vocabulary
/// is complete if exactly one of them has positions. tokens: (B, T) i32 below shard.vocabulary,
/// else the CPU throws an Error and a GPU writes not-a-number; y: (B, T, C).
void embedding_forward(Context& ctx, CView tokens, const EmbeddingTables& tables, float scale,
                       View y);

/// embedding_forward of a quantized table (rows, C); tables.table is absent. Rows are those that
/// dequantize gives in f32, and y is rounded once to its dtype, which positions have, too.
void quantized_embedding_forward(Context& ctx, CView tokens, const CQuantizedMatrix& table,
                                 const EmbeddingTables& tables, float scale, View y);

/// tokens: (B, T) i32; sort_index: (B * T) i32, the flat indices b * T + t sorted by token, stable.
/// Example: tokens 7 3 7 have the sort index 1 0 2. The loader makes it.
struct SortedTokens {
  CView tokens;
  CView sort_index;
};

/// dtable[v - shard.first] (+)= scale * sum of dy over the occurrences of token v, in ascending
/// order of their index, so that the result is deterministic; tokens outside the shard are skipped.
/// dy: (B, T, C); dtable: (rows, C), rows >= shard.count; Accumulate::no also
/// clears the rows of absent tokens and of padding, Accumulate::yes leaves them as they are.
void embedding_backward(Context& ctx, const SortedTokens& sorted, CView dy,
                        const VocabularyShard& shard, float scale, Accumulate accumulate,
                        View dtable);

/// dpositions[p] (+)= sum of dy[b, t] over the tokens at position p = first_token + t -
/// first_keys[b, t], in a fixed order; with Accumulate::no rows of positions that no token has are
/// cleared. dy: (B, T, C); first_keys: as in EmbeddingTables; dpositions: (T_max, C).
void position_backward(Context& ctx, CView dy, Dim first_token, CView first_keys,
                       Accumulate accumulate, View dpositions);

/// The fixed table of Vaswani et al. 2017, section 3.5: sin in even, cos in odd columns.
/// table: (T_max, C), f32 or f64; on a GPU f32, bf16 or f16. Setup only.
void sinusoidal_table(Context& ctx, View table);

}  // namespace hyperslab::ops
