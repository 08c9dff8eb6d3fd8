// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/patch_embedding.hpp"

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::nn {
PatchEmbedding::PatchEmbedding(param::ParamStore& params, const PatchEmbeddingConfig& config)
    : config_(config) {
  const auto declare = [&](const char* name, const Shape& shape, param::Role role, param::Init init,
                           float init_std) {
    param::ParamSpec spec = {name, shape, role, init, init_std};
    spec.placement.tensor = config.group.placement(layout::replicate());
    return params.declare(spec);
  };
  using param::Init;
  using param::Role;
  weight_ = declare("embedding.patch.weight", {config.width, config.patch_values}, Role::embedding,
                    Init::normal, config.init.std_of(config.patch_values, config.width));
  bias_ = declare("embedding.patch.bias", {config.width}, Role::bias, Init::zeros, 0);
  if (config.class_token) {
    class_token_ = declare("embedding.class_token", {config.width}, Role::embedding, Init::normal,
                           config.position_std);
  }
  if (config.positions == PositionTable::learned) {
    positions_ = declare("embedding.position.weight", {config.tokens(), config.width},
                         Role::embedding, Init::normal, config.position_std);
  }
}

View PatchEmbedding::plan(Arena& scratch, const ActivationSpec& spec) const {
  return scratch.take(spec.compute, {spec.B, config_.patches, config_.width}, "embedded patches");
}

ops::Dropout PatchEmbedding::dropout(const BatchInfo& batch, CView x) const {
  return on_stream(config_.group, ContextGroup(),
                   {batch.dropout ? config_.dropout : 0.0F, config_.seed, dropout_site(-1, 0),
                    batch.sample_position, batch.state},
                   x);
}

void PatchEmbedding::forward(Context& ctx, CView patches, const BatchInfo& batch,
                             const Scratch& scratch, View embedded, View y) const {
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const TensorGroup& group = config_.group;
  ops::linear_forward(ctx, patches, weight_.value(), bias_.value(), embedded);
  const View all = group.cuts_rows() ? scratch.gathered : y;
  ops::patch_tokens_forward(ctx, embedded, class_token_ ? class_token_.value() : CView(),
                            positions_ ? positions_.value() : fixed_positions_, all);
  if (group.cuts_rows()) {
    const View rows = y.as_matrix();
    const Dim count = rows.shape()[0];
    ops::cast(ctx, all.as_matrix().slice(group.rank() * count, count), rows);
  }
  const ops::Dropout mask = dropout(batch, y);
  if (mask.active()) ops::dropout(ctx, mask, y, y);
}

void PatchEmbedding::backward(Context& ctx, CView patches, const BackwardPass& pass, View embedded,
                              View dy) const {
  const auto gradient_of = [](const param::FusedParam& param) {
    return param ? param.gradient() : View();
  };
  const View d_weight = gradient_of(weight_);
  const View d_bias = gradient_of(bias_);
  const View d_class_token = gradient_of(class_token_);
  const View d_positions = gradient_of(positions_);
  if (!d_weight && !d_bias && !d_class_token && !d_positions) return;  // frozen
  const Scope scope(ctx.recorder(), kEmbeddingComponent);
  const ops::Dropout mask = dropout(pass.batch, dy);
  if (mask.active()) ops::dropout(ctx, mask, dy, dy);
  const CView all_dy = config_.group.gather(ctx, dy, pass.scratch.gathered);
  ops::patch_tokens_backward(ctx, all_dy, pass.accumulate, embedded, d_class_token, d_positions);
  if (d_weight || d_bias) {
    ops::linear_backward_weight(ctx, embedded, patches, pass.accumulate, d_weight, d_bias);
  }
}

}  // namespace hyperslab::nn
