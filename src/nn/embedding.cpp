// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/embedding.hpp"

namespace hyperslab::nn {

Embedding::Embedding(ParamTable& params, const EmbeddingConfig& config) : config_(config) {
  const ParamSpec table = {"embedding.token.weight",
                           {config.vocabulary, config.width},
                           ParamKind::token_table,
                           Init::normal,
                           config.init_std};
  const ParamSpec positions = {"embedding.position.weight",
                               {config.context, config.width},
                               ParamKind::position_table,
                               Init::normal,
                               config.init_std};
  table_ = params.declare(std::span(&table, 1));
  if (config.positions == PositionTable::learned) {
    positions_ = params.declare(std::span(&positions, 1));
  }
}

ops::Dropout Embedding::dropout(const BatchInfo& batch) const {
  return {batch.dropout ? config_.dropout : 0.0F, config_.seed, dropout_site(-1, 0),
          batch.sample_position, batch.state};
}

void Embedding::forward(Context& ctx, CView tokens, Dim first_position, const BatchInfo& batch,
                        View y) const {
  const Scope scope(ctx.recorder(), Component::embedding);
  const CView positions = positions_ ? positions_.value() : fixed_positions_;
  ops::embedding_forward(ctx, tokens, table_.value(), positions, first_position, config_.scale, y);
  const ops::Dropout mask = dropout(batch);
  if (mask.active()) ops::dropout(ctx, mask, y, y);
}

void Embedding::backward(Context& ctx, CView tokens, CView order, const BatchInfo& batch, View dy,
                         Accumulate table_accumulate, Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), Component::embedding);
  const ops::Dropout mask = dropout(batch);
  if (mask.active()) ops::dropout(ctx, mask, dy, dy);
  ops::embedding_backward(ctx, tokens, order, dy, config_.scale, table_accumulate,
                          table_.gradient());
  if (positions_) ops::position_backward(ctx, dy, accumulate, positions_.gradient());
}

}  // namespace hyperslab::nn
