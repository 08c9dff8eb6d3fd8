// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/block.hpp"

#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

Scratch plan_scratch(Arena& scratch, const BlockConfig& config, Dim B, Dim T, DType compute,
                     bool training) {
  const Shape width = {B, T, config.width};
  const Dim query_width = config.heads.heads * config.heads.head_width;
  Scratch out;
  out.delta = scratch.take(compute, width, "delta");
  if (!training) return out;
  out.d_mid = scratch.take(compute, width, "d_mid");
  if (config.dropout > 0) out.d_masked = scratch.take(compute, width, "d_masked");
  out.d_attention = scratch.take(compute, {B, T, query_width}, "d_attention");
  out.d_qkv = scratch.take(compute, {B, T, config.heads.packed_width()}, "d_qkv");
  if (ops::is_gated(config.activation)) {
    out.d_activated = scratch.take(compute, {B, T, config.ffn_width}, "d_activated");
  }
  if (config.keep_probabilities) {
    out.d_probabilities = scratch.take(compute, {B, config.heads.heads, T, T}, "d_probabilities");
  }
  return out;
}

Block::Block(ParamTable& params, const std::string& name, const BlockConfig& config, int layer)
    : config_(config),
      layer_(layer),
      norm1_(params, name + ".norm1", config.norm, config.width, config.norm_eps, config.bias),
      attention_(params, name + ".attention", config, layer),
      norm2_(params, name + ".norm2", config.norm, config.width, config.norm_eps, config.bias),
      mlp_(params, name + ".mlp", config) {}

Block::Slot Block::plan(Arena& activations, Dim B, Dim T, DType compute, DType statistics,
                        bool adds, const std::string& label) const {
  const Shape width = {B, T, config_.width};
  // Norms before the sublayers add what the previous sublayer left; norms after them add always.
  Slot slot;
  slot.norm1 = norm1_.plan(activations, width, compute, statistics, !config_.pre_norm || adds,
                           label + ".norm1");
  slot.attention = attention_.plan(activations, B, T, compute, statistics, label + ".attention");
  slot.norm2 = norm2_.plan(activations, width, compute, statistics, true, label + ".norm2");
  slot.mlp = mlp_.plan(activations, B, T, compute, label + ".mlp");
  return slot;
}

void Block::drop(Context& ctx, const BatchInfo& batch, Place place, CView x, View y) const {
  const ops::Dropout dropout = {config_.dropout, config_.seed,
                                dropout_site(layer_, static_cast<int>(place)),
                                batch.sample_position, batch.state};
  if (batch.dropout && dropout.active()) ops::dropout(ctx, dropout, x, y);
}

CView Block::masked(Context& ctx, const BatchInfo& batch, Place place, const Scratch& scratch,
                    CView d) const {
  if (!batch.dropout || config_.dropout == 0) return d;
  drop(ctx, batch, place, d, scratch.d_masked);
  return scratch.d_masked;
}

ResidualStream Block::forward(Context& ctx, ResidualStream in, const RopeTables& rope,
                              const BatchInfo& batch, const Scratch& scratch, Slot& slot) const {
  const View delta = scratch.delta;
  if (config_.pre_norm) {
    norm1_.forward(ctx, in.residual, in.delta, slot.norm1);
    attention_.forward(ctx, slot.norm1.y(), rope, batch, slot.attention, delta);
    drop(ctx, batch, Place::attention, delta, delta);
    norm2_.forward(ctx, slot.norm1.x, delta, slot.norm2);
    mlp_.forward(ctx, slot.norm2.y(), slot.mlp, delta);
    drop(ctx, batch, Place::mlp, delta, delta);
    return {slot.norm2.x, delta};
  }
  attention_.forward(ctx, in.residual, rope, batch, slot.attention, delta);
  drop(ctx, batch, Place::attention, delta, delta);
  norm1_.forward(ctx, in.residual, delta, slot.norm1);
  mlp_.forward(ctx, slot.norm1.y(), slot.mlp, delta);
  drop(ctx, batch, Place::mlp, delta, delta);
  norm2_.forward(ctx, slot.norm1.y(), delta, slot.norm2);
  return {slot.norm2.y(), {}};
}

void Block::backward(Context& ctx, const RopeTables& rope, const BatchInfo& batch,
                     const Scratch& scratch, const Slot& slot, CView input, View d,
                     Accumulate accumulate) const {
  if (config_.pre_norm) {
    CView dy = masked(ctx, batch, Place::mlp, scratch, d);
    mlp_.backward(ctx, dy, slot.norm2.y(), slot.mlp, scratch, scratch.d_mid, accumulate);
    norm2_.backward(ctx, slot.norm2, scratch.d_mid, Accumulate::yes, d, accumulate);
    dy = masked(ctx, batch, Place::attention, scratch, d);
    attention_.backward(ctx, dy, slot.norm1.y(), rope, batch, slot.attention, scratch,
                        scratch.d_mid, accumulate);
    norm1_.backward(ctx, slot.norm1, scratch.d_mid, Accumulate::yes, d, accumulate);
    return;
  }
  norm2_.backward(ctx, slot.norm2, d, Accumulate::no, d, accumulate);
  CView dy = masked(ctx, batch, Place::mlp, scratch, d);
  mlp_.backward(ctx, dy, slot.norm1.y(), slot.mlp, scratch, scratch.d_mid, accumulate);
  ops::add(ctx, d, scratch.d_mid, d);
  norm1_.backward(ctx, slot.norm1, d, Accumulate::no, d, accumulate);
  dy = masked(ctx, batch, Place::attention, scratch, d);
  attention_.backward(ctx, dy, input, rope, batch, slot.attention, scratch, scratch.d_mid,
                      accumulate);
  ops::add(ctx, d, scratch.d_mid, d);
}

ResidualStream Block::decode(Context& ctx, ResidualStream in, const RopeTables& rope, Dim past,
                             const CacheSlot& cache, const Scratch& scratch, Slot& slot) const {
  const View delta = scratch.delta;
  if (config_.pre_norm) {
    norm1_.forward(ctx, in.residual, in.delta, slot.norm1);
    attention_.decode(ctx, slot.norm1.y(), rope, past, cache, slot.attention, delta);
    norm2_.forward(ctx, slot.norm1.x, delta, slot.norm2);
    mlp_.forward(ctx, slot.norm2.y(), slot.mlp, delta);
    return {slot.norm2.x, delta};
  }
  attention_.decode(ctx, in.residual, rope, past, cache, slot.attention, delta);
  norm1_.forward(ctx, in.residual, delta, slot.norm1);
  mlp_.forward(ctx, slot.norm1.y(), slot.mlp, delta);
  norm2_.forward(ctx, slot.norm1.y(), delta, slot.norm2);
  return {slot.norm2.y(), {}};
}

}  // namespace hyperslab::nn
