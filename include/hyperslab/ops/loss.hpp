// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops {

inline constexpr std::int32_t kIgnoredTarget = -1;  ///< a place that does not count

enum class WithGradient : std::uint8_t { no, yes };

/// Cross-entropy of softmax(logits) and, where `gradient`, dlogits in place.
/// logits: (N, columns), the first shard.count of them replaced by
/// (softmax - onehot) * state.gradient_scale, zero in ignored rows; columns of padding take no part
/// and become zero. shard: the whole vocabulary. targets: (N) i32 in [0, shard.vocabulary) or
/// kIgnoredTarget; sums: (kSumCount), whose loss (nats), tokens and correct are increased; of equal
/// largest logits the first is the answer. Loss and statistics are f32 or better; sums over rows
/// are deterministic.
void softmax_cross_entropy(Context& ctx, View logits, const VocabularyShard& shard, CView targets,
                           const StepState* state, WithGradient gradient, View sums);

/// Places in what softmax_statistics says of a row.
enum RowStatistic : int {
  kRowLargest = 0,   ///< largest logit of the rank's tokens, -inf where it has none
  kRowExponentials,  ///< sum of exp(logit - largest)
  kRowTarget,        ///< the target's logit, -inf where the target is not this rank's
  kRowAnswer,        ///< token of the largest logit, the first of equals
  kRowStatisticCount
};

/// One rank's part of a loss over a vocabulary that is shared out by columns (Shoeybi et al. 2019,
/// section 3). logits: (N, columns) with columns >= shard.count, beyond which they are padding;
/// targets: (N) i32 in [0, shard.vocabulary) or kIgnoredTarget; statistics:
/// (N, kRowStatisticCount) f32 (f64 for f64). Where shard.count is 0: -inf, 0, -inf, vocabulary.
void softmax_statistics(Context& ctx, CView logits, const VocabularyShard& shard, CView targets,
                        View statistics);

/// The loss and, where `gradient`, dlogits in place from the statistics of all ranks. gathered:
/// (ranks, N, kRowStatisticCount) f32 (f64 for f64) in the order of the ranks, which is that of
/// their tokens. Else as softmax_cross_entropy; every rank adds the whole loss to its sums, so all
/// but one rank of the group give a view that nobody reads.
void vocabulary_cross_entropy(Context& ctx, View logits, const VocabularyShard& shard,
                              CView targets, CView gathered, const StepState* state,
                              WithGradient gradient, View sums);

}  // namespace hyperslab::ops
