// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {

LmHead::LmHead(param::ParamStore& params, const TransformerParts& parts)
    : parts_(parts),
      norm_(parts.has_final_norm() ? nn::Norm(params, parts.options.tensor, "final_norm",
                                              {parts.spec.norm, parts.spec.width,
                                               parts.block.norm_eps, parts.spec.bias})
                                   : nn::Norm()),
      head_(params, parts.embedding, parts.token_table) {}

void LmHead::plan_shared(Arenas& arenas) {
  const StageOptions& options = parts_.options;
  const std::size_t row_bytes =
      static_cast<std::size_t>(head_.columns()) * size_of(options.compute);
  const Dim most_rows = options.loss_rows > 0
                            ? options.loss_rows
                            : std::max<Dim>(1, static_cast<Dim>(options.logits_bytes / row_bytes));
  memory_ = head_.plan(arenas.scratch, parts_.activations(), parts_.scratch, most_rows);
  if (options.generation == Generation::none) return;
  if (options.generation == Generation::cached) {
    last_rows_ = arenas.activations.take(options.compute,
                                         {options.cache_size.rows, parts_.spec.width}, "last rows");
  }
  if (options.tensor.is_alone()) return;
  constexpr Dim kLeastRows = 64;  // rows gathered at once where a prompt asks for all logits
  const Dim rows = std::max(options.cache_size.rows, kLeastRows);
  rank_logits_ = arenas.scratch.take(
      options.compute, {options.tensor.size(), rows, head_.columns()}, "logits of all ranks");
}

CView LmHead::plan(Arena& activations, CView /*in*/) {
  Slot& slot = slots_.emplace_back();
  if (parts_.has_final_norm()) {
    const StageOptions& options = parts_.options;
    slot.norm = norm_.plan(
        activations, {parts_.stream(), options.compute, options.statistics(), true}, "final_norm");
  }
  return {};
}

CView LmHead::normalized(Context& ctx, nn::ResidualStream in, nn::Norm::Slot& slot) const {
  if (!parts_.has_final_norm()) return in.residual;
  norm_.forward(ctx, in.residual, in.delta, slot);
  return slot.y();
}

nn::ResidualStream LmHead::forward(Context& ctx, const UnitCall& call, nn::ResidualStream in) {
  Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  if (call.mode == Mode::decode) {
    decode(ctx, call, in, slot);
    return {};
  }
  slot.input = in.residual;
  const CView x = normalized(ctx, in, slot.norm);
  if (!call.logits.rows.empty()) {
    logits_of(ctx, x, call.logits.rows, call.logits.to);
    return {};
  }
  const Batch& batch = call.batch;
  const nn::Head::Targets targets = {batch.targets.flat(), batch.token_values, batch.teacher_ids,
                                     batch.pairs};
  if (call.mode == Mode::train) {
    head_.loss_and_gradient(ctx, x, targets, call.step, memory_, call.d, call.accumulate);
  } else {
    head_.loss(ctx, x, targets, call.step, memory_);
  }
  return {};
}

void LmHead::decode(Context& ctx, const UnitCall& call, nn::ResidualStream in,
                    const Slot& slot) const {
  const auto [B, T] = call.batch.tokens.dims<2>("decode tokens");
  nn::Norm::Slot norm = slot.norm.for_tokens({B, T});
  const CView rows = normalized(ctx, in, norm).as_matrix();
  if (call.logits.to.shape()[0] == B * T) return logits_of(ctx, rows, call.logits.to);
  for (Dim b = 0; b < B; ++b) {
    ops::cast(ctx, rows.slice(b * T + call.logits.last, 1), last_rows_.slice(b, 1));
  }
  logits_of(ctx, last_rows_.slice(0, B), call.logits.to);
}

void LmHead::logits_of(Context& ctx, CView rows, View logits) const {
  on_all_ranks(ctx, logits, [&](Dim first, View to) {
    head_.logits(ctx, rows.slice(first, to.shape()[0]), memory_, to);
  });
}

void LmHead::logits_of(Context& ctx, CView x, std::span<const Dim> rows, View logits) const {
  on_all_ranks(ctx, logits, [&](Dim first, View to) {
    const auto count = static_cast<std::size_t>(to.shape()[0]);
    head_.logits_of(ctx, x, rows.subspan(static_cast<std::size_t>(first), count), memory_, to);
  });
}

/// Every rank of the tensor group computes its columns and gets the others' columns: only the last
/// rank that has any pads them, so the vocabulary lies in the first columns. `product` computes
/// this rank's of rows from `first` on, as many as `to` has.
template <class Product>
void LmHead::on_all_ranks(Context& ctx, View logits, Product&& product) const {
  const nn::TensorGroup& group = parts_.options.tensor;
  if (group.is_alone()) return product(Dim{0}, logits);
  const Dim N = logits.shape()[0];
  const Dim columns = head_.columns();
  const Dim most = rank_logits_.shape()[1];
  for (Dim row = 0; row < N; row += most) {
    const Dim count = std::min(most, N - row);
    const auto of_rank = [&](Dim rank) {
      const Dim size = count * columns;
      return rank_logits_.flat().slice(rank * size, size).reshaped({count, columns});
    };
    const View all = rank_logits_.flat().slice(0, group.size() * count * columns);
    product(row, of_rank(group.rank()));
    group.all_gather(ctx, of_rank(group.rank()), all);
    for (Dim rank = 0; rank < group.size(); ++rank) {
      ops::put_columns(ctx, of_rank(rank), rank * columns, logits.slice(row, count));
    }
  }
}

void LmHead::backward(Context& ctx, const UnitCall& call) {
  if (call.part == nn::BackwardPart::weight || !parts_.has_final_norm()) return;
  const Slot& slot = slots_.at(static_cast<std::size_t>(call.slot));
  norm_.backward(ctx, slot.norm, call.d, Accumulate::no, call.d, call.accumulate);
}

BatchViews LmHead::reads(Mode mode) const {
  const StageOptions& options = parts_.options;
  const BatchViews targets = {&Batch::targets};
  if (mode == Mode::decode) return targets;
  const bool trains = mode == Mode::train;
  return targets.with(&Batch::token_values, options.loss.columns.count() > 0)
      .with(&Batch::teacher_ids, trains && options.loss.columns.teachers > 0)
      .with(&Batch::pairs, trains && options.loss.of_pairs);
}

CView LmHead::input(int slot) const {
  const Slot& of = slots_.at(static_cast<std::size_t>(slot));
  return parts_.has_final_norm() ? of.norm.x : of.input;
}

}  // namespace hyperslab::model
