// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::nn {

/// Output projection and loss, by row chunks so that logits never exist for more rows than a chunk.
/// The vocabulary is split over the tensor group: a chunk's loss takes one all-gather of row
/// statistics, and the input gradient is summed once for all chunks.
class Head {
 public:
  /// `tied`: the token table, if it is on this rank, else null.
  Head(param::ParamStore& params, const EmbeddingConfig& config, const param::FusedParam* tied);

  struct Memory {
    View scaled;      ///< (rows of a chunk, C): rows times the logit scale; absent if that is 1
    View logits;      ///< (rows of a chunk, columns of this rank with padding)
    View capped;      ///< likewise: logits after a softcap, for backward; absent without
    View statistics;  ///< (rows of a chunk, ops::row_statistics()); with several ranks only
    View gathered;    ///< (ranks, rows of a chunk, ops::row_statistics()); likewise
    View discarded;   ///< (ops::kSumCount): sums that count elsewhere; likewise, and with pairs
    View weights;     ///< (B T, 1): ops::preference_loss; with a loss of pairs only
    View scores;      ///< (B T, ops::kTargetScoreCount): the newest loss()'s scores of targets
    View all_rows;    ///< (B, T, C): Scratch::gathered
    View partial;     ///< (B, T, C): Scratch::partial
  };
  /// For spec.B * spec.T rows, with chunks of at most `most_rows`; `blocks`: scratch that the head
  /// shares with the blocks.
  Memory plan(Arena& scratch, const ActivationSpec& spec, const Scratch& blocks,
              Dim most_rows) const;

  /// The step's scalars, and where its sums go.
  struct Step {
    const ops::StepState* state = nullptr;
    View sums;     ///< (ops::kSumCount)
    View loads{};  ///< BatchInfo::loads
  };
  struct RowTargets;
  /// The targets of N = B T rows, and their values as the loss reads them.
  struct Targets {
    CView ids;            ///< (N)
    CView values{};       ///< Batch::token_values; may be absent
    CView teacher_ids{};  ///< Batch::teacher_ids, likewise
    CView pairs{};        ///< Batch::pairs, likewise

    [[nodiscard]] RowTargets with(const ops::TokenLoss& loss) const;
  };
  /// Adds the cross-entropy of x, the stream, against the targets to the sums (on one rank of the
  /// group), and leaves every target's scores in memory.scores (on all of them).
  void loss(Context& ctx, CView x, const Targets& targets, const Step& step,
            const Memory& memory) const;
  /// The loss of training with z-loss, if there is one, and its gradients: dx, the stream's, is
  /// overwritten; the weight gradient follows `accumulate`.
  void loss_and_gradient(Context& ctx, CView x, const Targets& targets, const Step& step,
                         const Memory& memory, View dx, Accumulate accumulate) const;
  /// x: (N, C) -> logits: (N, columns of this rank with padding).
  void logits(Context& ctx, CView x, const Memory& memory, View logits) const;
  /// Logits of some rows of x, the stream of a pass, in ascending order: logits: (rows, columns).
  /// Products have as many rows as loss()'s, so that the logits have the same bits as there.
  void logits_of(Context& ctx, CView x, std::span<const Dim> rows, const Memory& memory,
                 View logits) const;
  [[nodiscard]] Dim columns() const { return split_.rows; }

 private:
  /// Rows of a pass whose logits exist at once.
  struct Chunk {
    CView x;        ///< (rows, C)
    CView targets;  ///< (rows)
    View scores;    ///< (rows, ops::kTargetScoreCount); may be absent
    ops::TokenTerms terms;
  };
  void loss_of_rows(Context& ctx, CView all_x, const RowTargets& targets, const Step& step,
                    const Memory& memory) const;
  void gradient_of_rows(Context& ctx, CView all_x, const RowTargets& targets, const Step& step,
                        const Memory& memory, View dx, Accumulate accumulate) const;
  [[nodiscard]] CView scaled(Context& ctx, CView x, const Memory& memory) const;
  void project(Context& ctx, CView x, View logits) const;
  void chunk_loss(Context& ctx, const Chunk& chunk, const Step& step, const Memory& memory,
                  ops::WithGradient gradient) const;
  TensorGroup group_;
  VocabularySplit split_;
  float scale_ = 1;
  float softcap_ = 0;
  float z_loss_ = 0;
  HeadLoss loss_;
  param::FusedParam weight_;
};

}  // namespace hyperslab::nn
