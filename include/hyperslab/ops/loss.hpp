// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/token_columns.hpp"
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

/// The objective of a counted target, for its log-probability l (nats).
enum class TokenObjective : std::uint8_t {
  /// -l
  cross_entropy,
  /// -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) for the ratio r = e^(l - old) and the
  /// advantage A (Schulman et al. 2017, equation 7), and kl_weight (e^d - d - 1) for d = reference
  /// - l, an unbiased estimate of the divergence from the reference (Schulman 2020).
  clipped,
};

/// The loss of a target from the row of its values: columns of TokenTerms::values, -1: none.
struct TokenLoss {
  TokenObjective objective = TokenObjective::cross_entropy;
  int weight = -1;  ///< factor of the target's loss; without it 1
  int old_log_probability = -1;
  int advantage = -1;
  int reference = -1;
  int first_teacher = -1;  ///< log-probabilities of `teachers` tokens
  int teachers = 0;        ///< at most kMostTeachers
  float clip_low = 0.2F;
  float clip_high = 0.2F;
  float kl_weight = 0;
  /// a: the loss is 1 - a of the objective and a of the divergence of the model from the teacher's
  /// distribution q over its tokens, normalized: sum of q (log q - log p) (Hinton et al. 2015).
  float teacher_weight = 0;

  [[nodiscard]] constexpr bool has_teacher() const { return teachers > 0 && teacher_weight > 0; }
  /// The loss of an evaluation: cross-entropy with the files' weights.
  [[nodiscard]] TokenLoss for_evaluation() const { return {.weight = weight}; }
};
inline constexpr int kMostTeachers = 32;

/// Values of the targets of N rows.
struct TokenTerms {
  CView values{};       ///< (N, columns) f32; absent: the loss is minus the log-probability
  CView teacher_ids{};  ///< (N, teachers) i32, different in a row, in [0, vocabulary)
  TokenLoss loss{};
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
  TokenTerms terms{};
};

/// Cross-entropy of softmax(logits) and, with a gradient, dlogits in place: the first shard.count
/// columns are replaced by (softmax (1 + 2 z log(Z)) - onehot) * state.gradient_scale, zero in
/// ignored rows; columns of padding take no part and become zero. With rows.terms it is the
/// gradient of their loss. The shard is the whole vocabulary. sums: (kSumCount), whose loss
/// (without z-loss), z-loss, weights, tokens, correct, divergence and clipped are increased; of
/// equal largest logits the first is the answer. Scores are of the target alone. Loss and
/// statistics are f32 or better; sums over rows are deterministic.
void softmax_cross_entropy(Context& ctx, const LossRows& rows, const StepState* state,
                           WithGradient gradient, View sums);

/// Indices of the statistics that softmax_statistics writes for a row.
enum RowStatistic : int {
  kRowLargest = 0,   ///< largest logit of the rank's tokens, -inf if it has none
  kRowExponentials,  ///< sum of exp(logit - largest)
  kRowTarget,        ///< the target's logit, -inf if the target is not this rank's
  kRowAnswer,        ///< token of the largest logit, the first of equals
  kRowStatisticCount,
  kRowTeacher = kRowStatisticCount,  ///< sum of q logit over the teacher's tokens of this rank
};
/// Statistics of a row: one more where a teacher is.
[[nodiscard]] constexpr Dim row_statistics(const TokenLoss& loss) {
  return kRowStatisticCount + (loss.has_teacher() ? 1 : 0);
}

/// One rank's part of a loss over a vocabulary whose columns are distributed (Shoeybi et al. 2019,
/// section 3). Of rows logits, shard, targets and terms are read; statistics: (N, row_statistics())
/// f32 (f64 for f64). If shard.count is 0 a row is -inf, 0, -inf, vocabulary, and 0 of a teacher.
void softmax_statistics(Context& ctx, const LossRows& rows, View statistics);

/// The loss and, with a gradient, dlogits in place from the statistics of all ranks. gathered:
/// (ranks, N, row_statistics()) f32 (f64 for f64) in the order of the ranks, which is their
/// tokens' order. The rest is as in softmax_cross_entropy. Every rank adds the whole loss to its
/// sums, so all but one rank of the group pass scratch memory for them.
void vocabulary_cross_entropy(Context& ctx, const LossRows& rows, CView gathered,
                              const StepState* state, WithGradient gradient, View sums);

/// Pairs of answers in samples of text.
struct PairRows {
  CView scores;       ///< (B T, kTargetScoreCount): those of the targets, f32 (f64 for f64)
  CView references;   ///< (B T, columns) f32: TokenTerms::values
  int reference = 0;  ///< column of the reference's log-probabilities
  CView targets;      ///< (B T) i32, kIgnoredTarget if it does not count
  CView pairs;        ///< (B, T) i32: Batch::pairs
  float beta = 0.1F;
};

/// Direct preference optimization (Rafailov et al. 2023, equation 7): a pair's loss is
/// -log(sigmoid(beta m)), where m is the sum of log-probability minus the reference's over the
/// chosen answer's counted targets, less that of the rejected one's. sums: loss, weights (pairs),
/// tokens and marked (pairs with m > 0) are increased. weights: (B T, 1) f32, overwritten: the
/// derivative of the loss by minus the target's log-probability, so that softmax_cross_entropy with
/// these weights gives the gradient; 0 where no target counts.
void preference_loss(Context& ctx, const PairRows& rows, View weights, View sums);

}  // namespace hyperslab::ops
