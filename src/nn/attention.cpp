// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/block.hpp"

namespace hyperslab::nn {

Attention::Attention(ParamTable& params, const std::string& name, const BlockConfig& config,
                     int layer)
    : config_(config), layer_(layer) {
  const Dim query_width = config.heads.heads * config.heads.head_width;
  const Dim kv_width = config.heads.kv_heads * config.heads.head_width;
  qkv_ = Linear(
      params,
      {{name + ".query", query_width}, {name + ".key", kv_width}, {name + ".value", kv_width}},
      config.width, config.bias, config.init_std);
  output_ = Linear(params, {{name + ".output", config.width}}, query_width, config.bias,
                   config.residual_init_std);
}

Attention::Slot Attention::plan(Arena& activations, Dim B, Dim T, DType compute, DType statistics,
                                const std::string& label) const {
  const ops::HeadLayout& heads = config_.heads;
  Slot slot;
  slot.qkv = activations.take(compute, {B, T, heads.packed_width()}, label + ".qkv");
  slot.out = activations.take(compute, {B, T, heads.heads * heads.head_width}, label + ".output");
  if (config_.keep_probabilities) {
    slot.probabilities =
        activations.take(compute, {B, heads.heads, T, T}, label + ".probabilities");
  } else {
    slot.log_sum_exp = activations.take(statistics, {B, heads.heads, T}, label + ".log_sum_exp");
  }
  return slot;
}

ops::Dropout Attention::probability_dropout(const BatchInfo& batch) const {
  return {batch.dropout ? config_.dropout : 0.0F, config_.seed, dropout_site(layer_, 2),
          batch.sample_position, batch.state};
}

void Attention::forward(Context& ctx, CView x, const RopeTables& rope, const BatchInfo& batch,
                        Slot& slot, View y) const {
  const Scope scope(ctx.recorder(), Component::attention);
  qkv_.forward(ctx, x, slot.qkv);
  if (config_.rope) {
    ops::rope(ctx, config_.heads, rope.cosines, rope.sines, 0, ops::Rotation::forward, slot.qkv);
  }
  if (config_.keep_probabilities) {
    ops::attention_reference_forward(ctx, config_.heads, slot.qkv, probability_dropout(batch),
                                     slot.out, slot.probabilities);
  } else {
    ops::attention_forward(ctx, config_.heads, slot.qkv, slot.out, slot.log_sum_exp);
  }
  output_.forward(ctx, slot.out, y);
}

void Attention::backward(Context& ctx, CView dy, CView x, const RopeTables& rope,
                         const BatchInfo& batch, const Slot& slot, const Scratch& scratch, View dx,
                         Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), Component::attention);
  output_.backward_input(ctx, dy, scratch.d_attention);
  output_.backward_weight(ctx, dy, slot.out, accumulate);
  if (config_.keep_probabilities) {
    ops::attention_reference_backward(ctx, config_.heads, scratch.d_attention, slot.qkv,
                                      slot.probabilities, probability_dropout(batch),
                                      scratch.d_probabilities, scratch.d_qkv);
  } else {
    ops::attention_backward(ctx, config_.heads, scratch.d_attention, slot.qkv, slot.out,
                            slot.log_sum_exp, scratch.d_qkv);
  }
  if (config_.rope) {
    ops::rope(ctx, config_.heads, rope.cosines, rope.sines, 0, ops::Rotation::inverse,
              scratch.d_qkv);
  }
  qkv_.backward_input(ctx, scratch.d_qkv, dx);
  qkv_.backward_weight(ctx, scratch.d_qkv, x, accumulate);
}

void Attention::decode(Context& ctx, CView x, const RopeTables& rope, Dim past,
                       const CacheSlot& cache, const Slot& slot, View y) const {
  const Scope scope(ctx.recorder(), Component::attention);
  qkv_.forward(ctx, x, slot.qkv);
  if (config_.rope) {
    ops::rope(ctx, config_.heads, rope.cosines, rope.sines, past, ops::Rotation::forward, slot.qkv);
  }
  ops::attention_cached_forward(ctx, config_.heads, slot.qkv, past, cache.keys, cache.values,
                                slot.out);
  output_.forward(ctx, slot.out, y);
}

}  // namespace hyperslab::nn
