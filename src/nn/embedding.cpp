// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/embedding.hpp"

#include "hyperslab/nn/component.hpp"

namespace hyperslab::nn {

ParamSpec token_table(const EmbeddingConfig& config) {
  ParamSpec table = {"embedding.token.weight",
                     {config.vocabulary, config.width},
                     ParamKind::token_table,
                     Init::normal,
                     config.init_std};
  table.part = config.cut.part;
  table.tied = config.tied;
  return table;
}

Embedding::Embedding(ParamTable& params, const EmbeddingConfig& config) : config_(config) {
  const ParamSpec table = token_table(config);
  table_ = params.declare(std::span(&table, 1));
  if (config.positions != PositionTable::learned) return;
  ParamSpec positions = {"embedding.position.weight",
                         {config.context, config.width},
                         ParamKind::position_table,
                         Init::normal,
                         config.init_std};
  positions.holding = config.group.whole(Holding::equal);
  positions_ = params.declare(std::span(&positions, 1));
}

ops::Dropout Embedding::dropout(const BatchInfo& batch, CView x) const {
  return on_stream(config_.group,
                   {batch.dropout ? config_.dropout : 0.0F, config_.seed, dropout_site(-1, 0),
                    batch.sample_position, batch.state},
                   x);
}

void Embedding::forward(Context& ctx, CView tokens, Dim first_position, const BatchInfo& batch,
                        const Scratch& scratch, View y) const {
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const TensorGroup& group = config_.group;
  CView positions = positions_ ? positions_.value() : fixed_positions_;
  if (!group.is_first()) positions = {};  // they enter the sum once
  const View term = group.term(y, scratch.partial);
  ops::embedding_forward(ctx, tokens,
                         {.table = table_.value(),
                          .shard = config_.cut.shard,
                          .positions = positions,
                          .first_position = first_position},
                         config_.scale, term);
  group.sum(ctx, term, y);
  const ops::Dropout mask = dropout(batch, y);
  if (mask.active()) ops::dropout(ctx, mask, y, y);
}

void Embedding::backward(Context& ctx, CView tokens, CView sort_index, const BackwardPass& pass,
                         View dy, Accumulate table_accumulate) const {
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const ops::Dropout mask = dropout(pass.batch, dy);
  if (mask.active()) ops::dropout(ctx, mask, dy, dy);
  const CView all_dy = config_.group.gather(ctx, dy, pass.scratch.gathered);
  ops::embedding_backward(ctx, {tokens, sort_index}, all_dy, config_.cut.shard, config_.scale,
                          table_accumulate, table_.gradient());
  if (positions_) ops::position_backward(ctx, all_dy, pass.accumulate, positions_.gradient());
}

}  // namespace hyperslab::nn
