// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/head.hpp"

#include <algorithm>

namespace hyperslab::nn {

Head::Head(ParamTable& params, Dim vocabulary, Dim width, const Pack* tied, float init_std) {
  if (tied != nullptr) {
    weight_ = *tied;
    return;
  }
  const ParamSpec weight = {
      "head.weight", {vocabulary, width}, ParamKind::matrix, Init::normal, init_std};
  weight_ = params.declare(std::span(&weight, 1));
}

View Head::plan_logits(Arena& scratch, Dim N, Dim V, DType compute, std::size_t max_bytes) {
  const std::size_t row_bytes = static_cast<std::size_t>(V) * size_of(compute);
  const Dim most = std::max<Dim>(1, static_cast<Dim>(max_bytes / row_bytes));
  const Dim chunks = (N + most - 1) / most;
  return scratch.take(compute, {(N + chunks - 1) / chunks, V}, "logits");
}

void Head::loss(Context& ctx, CView x, CView targets, const ops::StepState* state, View logits,
                View sums) const {
  const Scope scope(ctx.recorder(), Component::head);
  const Dim N = x.shape()[0];
  for (Dim row = 0; row < N; row += logits.shape()[0]) {
    const Dim rows = std::min(logits.shape()[0], N - row);
    const View part = logits.slice(0, rows);
    ops::linear_forward(ctx, x.slice(row, rows), weight_.value(), {}, part);
    ops::softmax_cross_entropy(ctx, part, targets.slice(row, rows), state, ops::WithGradient::no,
                               sums);
  }
}

void Head::loss_and_gradient(Context& ctx, CView x, CView targets, const ops::StepState* state,
                             View logits, View sums, View dx, Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), Component::head);
  const Dim N = x.shape()[0];
  for (Dim row = 0; row < N; row += logits.shape()[0]) {
    const Dim rows = std::min(logits.shape()[0], N - row);
    const View part = logits.slice(0, rows);
    ops::linear_forward(ctx, x.slice(row, rows), weight_.value(), {}, part);
    ops::softmax_cross_entropy(ctx, part, targets.slice(row, rows), state, ops::WithGradient::yes,
                               sums);
    const Scope backward(ctx.recorder(), Phase::backward);
    ops::linear_backward_input(ctx, part, weight_.value(), Accumulate::no, dx.slice(row, rows));
    ops::linear_backward_weight(ctx, part, x.slice(row, rows),
                                row == 0 ? accumulate : Accumulate::yes, weight_.gradient(), {});
  }
}

void Head::logits(Context& ctx, CView x, View logits) const {
  const Scope scope(ctx.recorder(), Component::head);
  ops::linear_forward(ctx, x, weight_.value(), {}, logits);
}

}  // namespace hyperslab::nn
