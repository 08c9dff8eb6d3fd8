// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/head.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

Head::Head(param::ParamStore& params, const EmbeddingConfig& config, const param::FusedParam* tied)
    : group_(config.group),
      split_(config.vocabulary_split),
      scale_(config.logit_scale),
      softcap_(config.logit_softcap),
      z_loss_(config.z_loss),
      loss_(config.loss) {
  if (tied != nullptr) {
    params.share(*tied);
    weight_ = *tied;
    return;
  }
  param::ParamSpec weight = token_table(config);
  if (!config.tied) {
    weight.name = "head.weight";
    weight.role = param::Role::head;
  }
  weight_ = params.declare(weight);
}

Head::Memory Head::plan(Arena& scratch, const ActivationSpec& spec, const Scratch& blocks,
                        Dim most_rows) const {
  const Dim N = spec.B * spec.T;
  const Dim chunks = (N + most_rows - 1) / most_rows;
  const Dim rows = (N + chunks - 1) / chunks;
  const DType statistics = spec.statistics;
  Memory memory;
  memory.all_rows = blocks.gathered;
  memory.partial = blocks.partial;
  memory.scores = scratch.take(statistics, {N, ops::kTargetScoreCount}, "target scores");
  if (scale_ != 1) {
    const Dim width = weight_.members().front()->global_shape[1];
    memory.scaled = scratch.take(spec.compute, {rows, width}, "scaled rows of the head");
  }
  memory.logits = scratch.take(spec.compute, {rows, columns()}, "logits");
  if (softcap_ > 0) {
    memory.capped = scratch.take(spec.compute, {rows, columns()}, "capped logits");
  }
  if (!group_.is_alone()) {
    const Dim of_row = ops::row_statistics(loss_.target);
    memory.statistics = scratch.take(statistics, {rows, of_row}, "row statistics");
    memory.gathered =
        scratch.take(statistics, {group_.size(), rows, of_row}, "row statistics of all ranks");
  }
  if (loss_.of_pairs || !group_.is_alone()) {
    memory.discarded = scratch.take(statistics, {ops::kSumCount}, "discarded sums");
  }
  if (loss_.of_pairs) memory.weights = scratch.take(DType::f32, {N, 1}, "weights of pairs");
  return memory;
}

/// The targets of rows, and the terms of their loss.
struct Head::RowTargets {
  CView ids;  ///< (N)
  ops::TokenTerms terms;

  [[nodiscard]] Chunk chunk(CView x, Dim row, View scores) const {
    const Dim rows = x.shape()[0];
    const auto part = [&](const CView& view) { return view ? view.slice(row, rows) : CView(); };
    return {
        x, ids.slice(row, rows), scores, {part(terms.values), part(terms.teacher_ids), terms.loss}};
  }
};

Head::RowTargets Head::Targets::with(const ops::TokenLoss& loss) const {
  if (!values) return {ids, {}};
  return {ids, {values.as_matrix(), teacher_ids ? teacher_ids.as_matrix() : CView(), loss}};
}

/// Logits are far wider than rows, and the gradient of the weight needs the scale as well.
CView Head::scaled(Context& ctx, CView x, const Memory& memory) const {
  if (scale_ == 1) return x;
  const View y = memory.scaled.slice(0, x.shape()[0]);
  ops::scale(ctx, scale_, x, y);
  return y;
}

void Head::project(Context& ctx, CView x, View logits) const {
  if (const param::QuantizedWeight* quantized = weight_.quantized()) {
    ops::quantized_linear_forward(ctx, x, ops::as_const(quantized->matrix), {},
                                  quantized->spec.activations, logits);
  } else {
    ops::linear_forward(ctx, x, weight_.value(), {}, logits);
  }
  if (softcap_ > 0) ops::softcap(ctx, softcap_, logits, logits);
}

/// Logits of the chunk and their loss; with a gradient the logits are replaced by it.
void Head::chunk_loss(Context& ctx, const Chunk& chunk, const Step& step, const Memory& memory,
                      ops::WithGradient gradient) const {
  const Dim rows = chunk.x.shape()[0];
  const View logits = memory.logits.slice(0, rows);
  project(ctx, chunk.x, logits);
  if (softcap_ > 0 && gradient == ops::WithGradient::yes) {
    ops::cast(ctx, logits, memory.capped.slice(0, rows));
  }
  const ops::LossRows loss = {logits,
                              split_.shard,
                              chunk.targets,
                              chunk.scores,
                              gradient == ops::WithGradient::yes ? z_loss_ : 0,
                              chunk.terms};
  if (group_.is_alone()) {
    ops::softmax_cross_entropy(ctx, loss, step.state, gradient, step.sums);
    return;
  }
  const Dim of_row = ops::row_statistics(chunk.terms.loss);
  const View statistics = memory.statistics.flat().slice(0, rows * of_row).reshaped({rows, of_row});
  const View gathered = memory.gathered.flat()
                            .slice(0, group_.size() * statistics.numel())
                            .reshaped({group_.size(), rows, of_row});
  ops::softmax_statistics(ctx, loss, statistics);
  group_.all_gather(ctx, statistics, gathered);
  ops::vocabulary_cross_entropy(ctx, loss, gathered, step.state, gradient,
                                group_.is_first() ? step.sums : memory.discarded);
}

void Head::loss(Context& ctx, CView x, const Targets& targets, const Step& step,
                const Memory& memory) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  const CView all_x = group_.gather(ctx, x, memory.all_rows).as_matrix();
  loss_of_rows(ctx, all_x, targets.with(loss_.target.for_evaluation()), step, memory);
}

void Head::loss_of_rows(Context& ctx, CView all_x, const RowTargets& targets, const Step& step,
                        const Memory& memory) const {
  const Dim N = all_x.shape()[0];
  const Dim most = memory.logits.shape()[0];
  for (Dim row = 0; row < N; row += most) {
    const Dim rows = std::min(most, N - row);
    const CView part = scaled(ctx, all_x.slice(row, rows), memory);
    const Chunk chunk = targets.chunk(part, row, memory.scores.slice(row, rows));
    chunk_loss(ctx, chunk, step, memory, ops::WithGradient::no);
  }
}

void Head::loss_and_gradient(Context& ctx, CView x, const Targets& targets, const Step& step,
                             const Memory& memory, View dx, Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  const CView all_x = group_.gather(ctx, x, memory.all_rows).as_matrix();
  if (!loss_.of_pairs) {
    return gradient_of_rows(ctx, all_x, targets.with(loss_.target), step, memory, dx, accumulate);
  }
  const Step without = {step.state, memory.discarded, {}};
  loss_of_rows(ctx, all_x, targets.with({}), without, memory);
  const ops::PairRows pairs = {memory.scores,          targets.values.as_matrix(),
                               loss_.target.reference, targets.ids,
                               targets.pairs,          loss_.beta};
  ops::preference_loss(ctx, pairs, memory.weights,
                       group_.is_first() ? step.sums : memory.discarded);
  const RowTargets weighted = {targets.ids, {memory.weights, {}, {.weight = 0}}};
  gradient_of_rows(ctx, all_x, weighted, without, memory, dx, accumulate);
}

void Head::gradient_of_rows(Context& ctx, CView all_x, const RowTargets& targets, const Step& step,
                            const Memory& memory, View dx, Accumulate accumulate) const {
  const View term = group_.term(dx, memory.partial);
  const View d_weight = weight_.gradient();
  const Dim N = all_x.shape()[0];
  const Dim most = memory.logits.shape()[0];
  comm::Ticket sum = 0;  // ticket of the previous chunk's sum
  for (Dim row = 0; row < N; row += most) {
    const Dim rows = std::min(most, N - row);
    const CView part = scaled(ctx, all_x.slice(row, rows), memory);
    chunk_loss(ctx, targets.chunk(part, row, {}), step, memory, ops::WithGradient::yes);
    const Scope backward(ctx.recorder(), Phase::backward);
    const View d_logits = memory.logits.slice(0, rows);
    if (softcap_ > 0) {
      ops::softcap_backward(ctx, softcap_, memory.capped.slice(0, rows), d_logits, d_logits);
    }
    ops::linear_backward_input(ctx, d_logits, weight_.value(), Accumulate::no,
                               term.as_matrix().slice(row, rows));
    if (!group_.cuts_rows()) {
      const View chunk = dx.as_matrix().slice(row, rows);
      group_.wait(ctx, std::exchange(sum, group_.start_sum(ctx, chunk, chunk)));
    }
    if (!d_weight) continue;  // frozen
    ops::linear_backward_weight(ctx, d_logits, part, row == 0 ? accumulate : Accumulate::yes,
                                d_weight, {});
  }
  if (group_.cuts_rows()) sum = group_.start_sum(ctx, term, dx);
  group_.wait(ctx, sum);
  if (scale_ != 1) ops::scale(ctx, scale_, dx, dx);
}

void Head::logits(Context& ctx, CView x, const Memory& memory, View logits) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  const Dim N = x.shape()[0];
  const Dim most = scale_ == 1 ? N : memory.scaled.shape()[0];
  for (Dim row = 0; row < N; row += most) {
    const Dim rows = std::min(most, N - row);
    project(ctx, scaled(ctx, x.slice(row, rows), memory), logits.slice(row, rows));
  }
}

void Head::logits_of(Context& ctx, CView x, std::span<const Dim> rows, const Memory& memory,
                     View logits) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  const CView all_x = group_.gather(ctx, x, memory.all_rows).as_matrix();
  const Dim N = all_x.shape()[0];
  const Dim most = memory.logits.shape()[0];
  for (std::size_t i = 0; i < rows.size();) {
    const Dim first = rows[i] / most * most;
    const Dim count = std::min(most, N - first);
    const View of_chunk = memory.logits.slice(0, count);
    project(ctx, scaled(ctx, all_x.slice(first, count), memory), of_chunk);
    for (; i < rows.size() && rows[i] < first + count; ++i) {
      ops::cast(ctx, of_chunk.slice(rows[i] - first, 1), logits.slice(static_cast<Dim>(i), 1));
    }
  }
}

}  // namespace hyperslab::nn
