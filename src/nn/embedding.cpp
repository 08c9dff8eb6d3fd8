// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/embedding.hpp"

#include "hyperslab/nn/component.hpp"

namespace hyperslab::nn {

param::ParamSpec token_table(const EmbeddingConfig& config) {
  param::ParamSpec table = {"embedding.token.weight",
                            {config.vocabulary, config.width},
                            param::Role::embedding,
                            param::Init::normal,
                            config.init_std};
  const ops::VocabularyShard& rows = config.vocabulary_split.shard;
  table.part = Hyperslab::whole(table.shape).narrow(0, rows.first, rows.count);
  table.stored_rows = config.vocabulary_split.rows;
  if (config.tied) table.placement.pipeline = layout::partial();
  return table;
}

Embedding::Embedding(param::ParamStore& params, const EmbeddingConfig& config) : config_(config) {
  const param::ParamSpec table = token_table(config);
  table_ = params.declare(table);
  if (config.positions != PositionTable::learned) return;
  param::ParamSpec positions = {"embedding.position.weight",
                                {config.context, config.width},
                                param::Role::embedding,
                                param::Init::normal,
                                config.init_std};
  positions.placement.tensor = config.group.placement(layout::replicate());
  positions.keeps_values = true;
  positions_ = params.declare(positions);
}

ops::Dropout Embedding::dropout(const BatchInfo& batch, CView x) const {
  return on_stream(config_.group, config_.context_group,
                   {batch.dropout ? config_.dropout : 0.0F, config_.seed, dropout_site(-1, 0),
                    batch.sample_position, batch.state},
                   x);
}

void Embedding::forward(Context& ctx, CView tokens, const ops::TokenPosition& first_position,
                        const BatchInfo& batch, const Scratch& scratch, View y) const {
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const TensorGroup& group = config_.group;
  CView positions = positions_ ? positions_.value() : fixed_positions_;
  if (!group.is_first()) positions = {};  // they enter the sum once
  const View term = group.term(y, scratch.partial);
  ops::EmbeddingTables tables = {.table = {},
                                 .shard = config_.vocabulary_split.shard,
                                 .positions = positions,
                                 .first_position = first_position,
                                 .first_keys = batch.own_first_keys};
  if (const param::QuantizedWeight* quantized = table_.quantized()) {
    ops::quantized_embedding_forward(ctx, tokens, ops::as_const(quantized->matrix), tables,
                                     config_.scale, term);
  } else {
    tables.table = table_.value();
    ops::embedding_forward(ctx, tokens, tables, config_.scale, term);
  }
  group.sum(ctx, term, y);
  const ops::Dropout mask = dropout(batch, y);
  if (mask.active()) ops::dropout(ctx, mask, y, y);
}

void Embedding::backward(Context& ctx, CView tokens, CView sort_index, const BackwardPass& pass,
                         View dy, Accumulate table_accumulate) const {
  const View d_table = table_.gradient();
  const View d_positions = positions_ ? positions_.gradient() : View();
  if (!d_table && !d_positions) return;  // frozen
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const ops::Dropout mask = dropout(pass.batch, dy);
  if (mask.active()) ops::dropout(ctx, mask, dy, dy);
  const CView all_dy = config_.group.gather(ctx, dy, pass.scratch.gathered);
  if (d_table) {
    ops::embedding_backward(ctx, {tokens, sort_index}, all_dy, config_.vocabulary_split.shard,
                            config_.scale, table_accumulate, d_table);
  }
  if (d_positions) {
    const Dim first_token = config_.context_group.first_token(tokens.shape()[1]);
    ops::position_backward(ctx, all_dy, first_token, pass.batch.own_first_keys, pass.accumulate,
                           d_positions);
  }
}

}  // namespace hyperslab::nn
