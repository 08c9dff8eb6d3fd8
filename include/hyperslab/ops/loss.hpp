// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops {

inline constexpr std::int32_t kIgnoredTarget = -1;  ///< a position that does not count

enum class WithGradient : std::uint8_t { no, yes };

/// Indices of the scores of a single target.
enum TargetScore : int {
  kScoreLoss = 0,  ///< nats: minus the target's log-probability
  kScoreIsAnswer,  ///< 1 if the target is the likeliest token, of equals the first, else 0
  kTargetScoreCount
};

/// logits: (N, columns) with columns >= shard.count, beyond which they are padding; targets: (N)
/// i32 in [0, shard.vocabulary) or kIgnoredTarget; scores: (N, kTargetScoreCount) f32 (f64 for
/// f64), overwritten, zero in ignored rows; absent: the sums are enough.
struct LossRows {
  View logits;
  VocabularyShard shard;
  CView targets;
  View scores = {};
  /// z: z log(Z)^2, for Z the sum of the exponentials of a counted row's logits, is added to the
  /// sum that the gradient is of (Chowdhery et al. 2022, section 5); 0: it is not.
  float z_loss = 0;
};

/// Cross-entropy of softmax(logits) and, with a gradient, dlogits in place: the first shard.count
/// columns are replaced by (softmax (1 + 2 z log(Z)) - onehot) * state.gradient_scale, zero in
/// ignored rows; columns of padding take no part and become zero. The shard is the whole
/// vocabulary. sums: (kSumCount), whose loss (nats, without z-loss), z-loss, tokens and correct are
/// increased; of equal largest logits the first is the answer. Loss and statistics are f32 or
/// better; sums over rows are deterministic.
void softmax_cross_entropy(Context& ctx, const LossRows& rows, const StepState* state,
                           WithGradient gradient, View sums);

/// Indices of the statistics that softmax_statistics writes for a row.
enum RowStatistic : int {
  kRowLargest = 0,   ///< largest logit of the rank's tokens, -inf if it has none
  kRowExponentials,  ///< sum of exp(logit - largest)
  kRowTarget,        ///< the target's logit, -inf if the target is not this rank's
  kRowAnswer,        ///< token of the largest logit, the first of equals
  kRowStatisticCount
};

/// One rank's part of a loss over a vocabulary whose columns are distributed (Shoeybi et al. 2019,
/// section 3). logits, shard, targets: as in LossRows; statistics: (N, kRowStatisticCount) f32 (f64
/// for f64). If shard.count is 0 a row is -inf, 0, -inf, vocabulary.
void softmax_statistics(Context& ctx, CView logits, const VocabularyShard& shard, CView targets,
                        View statistics);

/// The loss and, with a gradient, dlogits in place from the statistics of all ranks. gathered:
/// (ranks, N, kRowStatisticCount) f32 (f64 for f64) in the order of the ranks, which is their
/// tokens' order. The rest is as in softmax_cross_entropy. Every rank adds the whole loss to its
/// sums, so all but one rank of the group pass scratch memory for them.
void vocabulary_cross_entropy(Context& ctx, const LossRows& rows, CView gathered,
                              const StepState* state, WithGradient gradient, View sums);

}  // namespace hyperslab::ops
