// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::nn {

/// Output projection and loss, by row chunks so that logits never exist for more rows than a chunk.
/// The vocabulary is dealt out over the tensor group: a chunk's loss takes one all-gather of row
/// statistics, and the input gradient is summed once for all chunks.
class Head {
 public:
  /// `tied`: the token table, where it is on this rank.
  Head(ParamTable& params, const EmbeddingConfig& config, const Pack* tied);

  struct Memory {
    View logits;      ///< (rows of a chunk, columns of this rank with padding)
    View statistics;  ///< (rows of a chunk, ops::kRowStatisticCount); with several ranks only
    View gathered;    ///< (ranks, rows of a chunk, ops::kRowStatisticCount); likewise
    View discarded;   ///< (ops::kSumCount): sums that another rank counts; likewise
  };
  /// For N rows, with chunks of at most `max_bytes` of logits.
  Memory plan(Arena& scratch, Dim N, DType compute, DType statistics, std::size_t max_bytes) const;

  /// Adds the loss of x, the stream, against targets: (N) to `sums` (on one rank of the group).
  void loss(Context& ctx, CView x, CView targets, const ops::StepState* state, const Memory& memory,
            const Scratch& scratch, View sums) const;
  /// The same, and dx: the stream's gradient, overwritten, and the weight gradient.
  void loss_and_gradient(Context& ctx, CView x, CView targets, const ops::StepState* state,
                         const Memory& memory, const Scratch& scratch, View sums, View dx,
                         Accumulate accumulate) const;
  /// x: (N, C) -> logits: (N, columns of this rank with padding).
  void logits(Context& ctx, CView x, View logits) const;
  [[nodiscard]] Dim columns() const { return cut_.rows; }

 private:
  void chunk_loss(Context& ctx, CView x, CView targets, const ops::StepState* state,
                  const Memory& memory, ops::WithGradient gradient, View sums) const;
  TensorGroup group_;
  VocabularyCut cut_;
  Pack weight_;
};

}  // namespace hyperslab::nn
