// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {

void TokenEmbedding::plan_shared(Arenas& arenas) {
  if (parts_.embedding.positions != nn::PositionTable::fixed) return;
  fixed_positions_ = arenas.parameters.take(
      parts_.options.compute, {parts_.spec.context, parts_.spec.width}, "sinusoidal positions");
  embedding_.set_fixed_positions(fixed_positions_);
}

void TokenEmbedding::initialize(Context& ctx) {
  if (fixed_positions_) ops::sinusoidal_table(ctx, fixed_positions_);
}

CView TokenEmbedding::plan(Arena& activations, CView /*in*/) {
  return outputs_.emplace_back(
      activations.take(parts_.options.compute, parts_.stream(), "embedding.output"));
}

nn::ResidualStream TokenEmbedding::forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream /*in*/) {
  View y = outputs_.at(static_cast<std::size_t>(call.slot));
  if (call.mode == Mode::decode) y = nn::for_tokens(y, call.token_count());
  const bool decodes = call.mode == Mode::decode;
  const ops::TokenPosition first =
      decodes ? call.texts.past
              : ops::TokenPosition(parts_.options.context_group.first_token(parts_.options.T));
  embedding_.forward(ctx, call.batch.tokens, first, parts_.info(call), parts_.scratch, y);
  return {y, {}};
}

void TokenEmbedding::backward(Context& ctx, const UnitCall& call) {
  if (call.part == nn::BackwardPart::weight) return;  // the input's part did all
  const nn::BatchInfo info = parts_.info(call);
  embedding_.backward(ctx, call.batch.tokens, call.batch.token_sort_index,
                      {parts_.rope, info, parts_.scratch, call.accumulate, call.part}, call.d,
                      parts_.head_writes_token_table ? Accumulate::yes : call.accumulate);
}

BatchViews TokenEmbedding::reads(Mode mode) const {
  const bool has_table = parts_.embedding.positions != nn::PositionTable::none;
  return BatchViews{&Batch::tokens, &Batch::token_sort_index}
      .with(&Batch::sample_position, parts_.drops(mode))
      .with(parts_.options.context_group.is_alone() ? &Batch::first_keys : &Batch::own_first_keys,
            parts_.options.documents && has_table);
}

}  // namespace hyperslab::model
