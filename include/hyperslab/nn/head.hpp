// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/linear.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::nn {

/// Output projection and loss, by row chunks so that logits never exist for more rows than a chunk.
class Head {
 public:
  /// An own weight (V, C) named head.weight, or `tied`: the token table.
  Head(ParamTable& params, Dim vocabulary, Dim width, const Pack* tied, float init_std);

  /// logits: (rows of a chunk, V) scratch for N rows, at most `max_bytes`.
  static View plan_logits(Arena& scratch, Dim N, Dim V, DType compute, std::size_t max_bytes);

  /// Adds the loss of x: (N, C) against targets: (N) to `sums`.
  void loss(Context& ctx, CView x, CView targets, const ops::StepState* state, View logits,
            View sums) const;
  /// The same, and dx: (N, C), overwritten, and the weight gradient.
  void loss_and_gradient(Context& ctx, CView x, CView targets, const ops::StepState* state,
                         View logits, View sums, View dx, Accumulate accumulate) const;
  /// x: (N, C) -> logits: (N, V).
  void logits(Context& ctx, CView x, View logits) const;

 private:
  Pack weight_;
};

}  // namespace hyperslab::nn
