// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/block.hpp"

#include <algorithm>

#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

namespace {

Norm::Options norm_options(const BlockConfig& config, ops::NormKind kind) {
  return {kind, config.width, config.norm_eps, config.bias};
}

float drop_path_of(const BlockConfig& config, int layer) {
  if (config.drop_path_rule == DropPathRule::constant) return config.drop_path;
  return config.drop_path * static_cast<float>(layer) /
         static_cast<float>(std::max(1, config.layers - 1));
}

/// Bytes of Scratch::rounded_gradient: for the gradient of a layer's outputs that has most.
Dim rounded_gradient_bytes(const BlockConfig& config, Dim packed_width,
                           const ActivationSpec& spec) {
  const ActivationSpec inner = mlp_spec(config, spec);
  const Dim ffn_width = config.ffn_width / config.group.size();
  const Dim pre_width = ops::is_gated(config.activation) ? 2 * ffn_width : ffn_width;
  return std::max(
      Fp8Product::kept_bytes(config.fp8, std::max(packed_width, config.width), spec.B * spec.T),
      Fp8Product::kept_bytes(config.fp8, pre_width, inner.B * inner.T));
}

}  // namespace

ActivationSpec mlp_spec(const BlockConfig& config, const ActivationSpec& spec) {
  if (config.mlp_rows == 0) return spec;
  const Dim ranks = config.group.cuts_rows() ? config.group.size() : 1;
  const Dim stream_rows = spec.B * spec.T / ranks;
  const Dim most = std::max<Dim>(1, config.mlp_rows / ranks);
  const Dim pieces = (stream_rows + most - 1) / most;
  ActivationSpec piece = spec;
  piece.B = 1;
  piece.T = (stream_rows + pieces - 1) / pieces * ranks;
  return piece;
}

Scratch plan_scratch(Arena& scratch, const BlockConfig& config, const ActivationSpec& spec,
                     bool training) {
  const auto& [B, T, compute, statistics] = spec;
  const TensorGroup& group = config.group;
  const Shape stream = group.stream_shape(B, T, config.width);
  const Dim heads = config.heads.heads / group.size();
  const Dim kv_heads = std::max<Dim>(1, config.heads.kv_heads / group.size());
  const Dim packed_width = (heads + 2 * kv_heads) * config.heads.head_width;
  const Dim ffn_width = config.ffn_width / group.size();
  Scratch out;
  const bool norms_outputs = config.output_norm != ops::NormKind::none;
  out.delta = scratch.take(compute, stream, "delta");
  if (config.parallel) out.sublayer = scratch.take(compute, stream, "second sublayer");
  if (group.cuts_rows()) {
    out.gathered = scratch.take(compute, {B, T, config.width}, "gathered rows");
    out.partial = scratch.take(compute, {B, T, config.width}, "partial sums");
  }
  if (!training) return out;
  if (config.recompute == Recompute::selective) {
    if (config.pre_norm) out.norm_out = scratch.take(compute, stream, "norm output");
    out.activated = scratch.take(compute, {B, T, ffn_width}, "activated");
  }
  out.d_mid = scratch.take(compute, stream, "d_mid");
  if (config.parallel || norms_outputs) {
    out.d_sublayer = scratch.take(compute, stream, "d_sublayer");
  }
  if (config.dropout > 0 || config.drop_path > 0)
    out.d_masked = scratch.take(compute, stream, "d_masked");
  out.d_attention = scratch.take(compute, {B, T, heads * config.heads.head_width}, "d_attention");
  if (!config.split_backward) out.d_qkv = scratch.take(compute, {B, T, packed_width}, "d_qkv");
  if (ops::is_gated(config.activation) || config.fp8 ||
      config.adapter.applies_to(name_of(AdapterTarget::down))) {
    const ActivationSpec inner = mlp_spec(config, spec);
    out.d_activated = scratch.take(compute, {inner.B, inner.T, ffn_width}, "d_activated");
  }
  if (config.adapter) {
    constexpr Dim kMostSideBySide = 3;  // query, key and value
    out.adapter_gradient =
        scratch.take(compute, {B, T, kMostSideBySide * config.adapter.rank}, "adapter gradient");
  }
  if (config.fp8 && !config.adapter && !config.split_backward) {
    out.rounded_gradient = scratch.take(
        DType::u8, {rounded_gradient_bytes(config, packed_width, spec)}, "rounded gradient");
  }
  if (config.keep_probabilities) {
    out.d_probabilities = scratch.take(compute, {B, heads, T, T}, "d_probabilities");
  }
  return out;
}

ops::Dropout on_stream(const TensorGroup& group, ops::Dropout dropout, CView x) {
  if (!group.cuts_rows() || !dropout.active()) return dropout;
  const Dim samples = std::max<Dim>(1, dropout.sample_position.numel());
  dropout.elements_per_sample = x.numel() * group.size() / samples;
  dropout.first_element = group.rank() * x.numel();
  return dropout;
}

ops::Dropout adapter_dropout(const BlockConfig& config, int layer, AdaptedLinear linear,
                             const BatchInfo& batch) {
  if (!config.adapter || !batch.dropout) return {};
  ops::Dropout dropout = {static_cast<float>(config.adapter.dropout), config.seed,
                          dropout_site(layer, linear), batch.sample_position, batch.state};
  const bool is_row = linear == AdaptedLinear::output || linear == AdaptedLinear::down;
  if (!is_row || config.group.is_alone()) return dropout;
  // Ranks hold columns of these inputs.
  dropout.total_columns = linear == AdaptedLinear::down
                              ? config.ffn_width
                              : config.heads.heads * config.heads.head_width;
  dropout.first_column = config.group.rank() * (dropout.total_columns / config.group.size());
  return dropout;
}

View take_reduced(Arena& activations, const ActivationSpec& spec, const Linear& linear,
                  const std::string& label) {
  const Dim ranks = linear.adapter_ranks();
  return ranks == 0 ? View() : activations.take(spec.compute, {spec.B, spec.T, ranks}, label);
}

View take_amax(Arena& activations, const TensorGroup& group, const Linear& linear,
               const std::string& label) {
  const bool keeps = linear.keeps_amax() && group.is_alone();
  return keeps ? activations.take(DType::f32, {Fp8Product::kAmaxes}, label) : View();
}

Block::Block(param::ParamStore& params, const std::string& name, const BlockConfig& config,
             int layer)
    : config_(config),
      layer_(layer),
      drop_path_(drop_path_of(config, layer)),
      norm1_(params, config.group, name + ".norm1", norm_options(config, config.norm)),
      attention_(params, name + ".attention", config, layer),
      norm2_(params, config.group, name + ".norm2", norm_options(config, config.norm)),
      mlp_(params, name + ".mlp", config, layer),
      attention_norm_(params, config.group, name + ".attention_norm",
                      norm_options(config, config.output_norm)),
      mlp_norm_(params, config.group, name + ".mlp_norm",
                norm_options(config, config.output_norm)) {}

Block::Slot Block::plan(Arena& activations, const Scratch& scratch, const ActivationSpec& spec,
                        bool adds, const std::string& label) const {
  const auto& [B, T, compute, statistics] = spec;
  const Shape stream = config_.group.stream_shape(B, T, config_.width);
  // Norms before the sublayers add the previous sublayer's output; norms after them add always.
  Slot slot;
  slot.norm1 = norm1_.plan(
      activations, {stream, compute, statistics, !config_.pre_norm || adds, scratch.norm_out},
      label + ".norm1");
  slot.attention = attention_.plan(activations, spec, label + ".attention");
  // Parallel sublayers read the same sum, which the first norm has.
  slot.norm2 =
      norm2_.plan(activations, {stream, compute, statistics, !config_.parallel, scratch.norm_out},
                  label + ".norm2");
  slot.mlp = mlp_.plan(activations, scratch, spec, label + ".mlp");
  if (!norms_outputs()) return slot;
  const auto plan_output = [&](const Norm& norm, const std::string& name, View& output) {
    output = activations.take(spec.compute, stream, name + " output");
    return norm.plan(activations, {stream, spec.compute, spec.statistics, false, scratch.delta},
                     name + "_norm");
  };
  slot.attention_norm = plan_output(attention_norm_, label + ".attention", slot.attention_output);
  slot.mlp_norm = plan_output(mlp_norm_, label + ".mlp", slot.mlp_output);
  return slot;
}

Scratch Scratch::for_tokens(const TokenCount& count) const {
  Scratch out;
  out.delta = nn::for_tokens(delta, count);
  out.sublayer = nn::for_tokens(sublayer, count);
  return out;
}

Scratch Scratch::for_piece(Dim rows) const {
  Scratch out;
  out.d_activated = first_rows(d_activated, rows);
  out.gathered = first_rows(gathered, rows);
  out.partial = first_rows(partial, rows);
  out.adapter_gradient = first_rows(adapter_gradient, rows);
  out.rounded_gradient = rounded_gradient;
  return out;
}

Block::Slot Block::Slot::for_tokens(const TokenCount& count) const {
  return {.norm1 = norm1.for_tokens(count),
          .attention = attention.for_tokens(count),
          .norm2 = norm2.for_tokens(count),
          .mlp = mlp.for_tokens(count),
          .attention_output = nn::for_tokens(attention_output, count),
          .attention_norm = attention_norm.for_tokens(count),
          .mlp_output = nn::for_tokens(mlp_output, count),
          .mlp_norm = mlp_norm.for_tokens(count)};
}

void Block::drop(Context& ctx, const BatchInfo& batch, Sublayer sublayer, CView x, View y) const {
  if (!batch.dropout) return;
  ops::Dropout dropout = {config_.dropout, config_.seed,
                          dropout_site(layer_, static_cast<int>(sublayer)), batch.sample_position,
                          batch.state};
  if (dropout.active()) ops::dropout(ctx, on_stream(config_.group, dropout, x), x, y);
  const CView dropped = dropout.active() ? CView(y) : x;
  dropout.probability = drop_path_;
  if (dropout.active()) ops::drop_path(ctx, on_stream(config_.group, dropout, x), dropped, y);
}

CView Block::masked(Context& ctx, const BatchInfo& batch, Sublayer sublayer, const Scratch& scratch,
                    CView d) const {
  if (!batch.dropout || !drops()) return d;
  drop(ctx, batch, sublayer, d, scratch.d_masked);
  return scratch.d_masked;
}

/// y: attention's term of the stream.
void Block::run_attention(Context& ctx, CView x, const ForwardPass& pass, Slot& slot,
                          View y) const {
  const View output = norms_outputs() ? slot.attention_output : y;
  attention_.forward(ctx, x, pass, slot.attention, output);
  if (norms_outputs()) attention_norm_.forward(ctx, output, {}, slot.attention_norm);
  drop(ctx, pass.batch, Sublayer::attention, y, y);
}

/// y: the feed-forward network's term of the stream.
void Block::run_mlp(Context& ctx, CView x, const ForwardPass& pass, Slot& slot, View y) const {
  const View output = norms_outputs() ? slot.mlp_output : y;
  mlp_.forward(ctx, x, pass, slot.mlp, output);
  if (norms_outputs()) mlp_norm_.forward(ctx, output, {}, slot.mlp_norm);
  drop(ctx, pass.batch, Sublayer::mlp, y, y);
}

bool Block::ends_at_mlp(Context& ctx, const ForwardPass& pass, const Slot& slot) const {
  return pass.repeated && !norms_outputs() && mlp_.repeat(ctx, slot.norm2.y(), pass, slot.mlp);
}

/// One token on its cache by one op. Returns false if that does not do all that forward() does.
bool Block::forward_token(Context& ctx, ResidualStream in, const ForwardPass& pass,
                          Slot& slot) const {
  const bool drops_here = drops() && pass.batch.dropout;
  if (!pass.cache || in.residual.numel() != config_.width || norms_outputs() || drops_here) {
    return false;
  }
  ops::DecodeBlock block;
  const std::optional<ops::BlockNorm> norm1 = norm1_.operands();
  const std::optional<ops::BlockNorm> norm2 = norm2_.operands();
  if (!norm1 || !norm2 || !attention_.describe(pass, block) || !mlp_.describe(block)) return false;
  block.attention_norm = *norm1;
  block.mlp_norm = *norm2;
  if (!ops::decode_block_forward(ctx, block,
                                 {.residual = in.residual,
                                  .delta = in.delta,
                                  .attention_sum = in.delta ? slot.norm1.sum : View(),
                                  .mlp_sum = slot.norm2.sum,
                                  .qkv = slot.attention.qkv,
                                  .activated = slot.mlp.activated,
                                  .out = pass.scratch.delta})) {
    return false;
  }
  slot.norm1.x = in.delta ? CView(slot.norm1.sum) : in.residual;
  slot.norm2.x = slot.norm2.sum;
  return true;
}

ResidualStream Block::forward_before(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                     Slot& slot) const {
  const View delta = pass.scratch.delta;
  if (forward_token(ctx, in, pass, slot)) return {slot.norm2.x, delta};
  norm1_.forward(ctx, in.residual, in.delta, slot.norm1);
  run_attention(ctx, slot.norm1.y(), pass, slot, delta);
  norm2_.forward(ctx, slot.norm1.x, delta, slot.norm2);
  if (ends_at_mlp(ctx, pass, slot)) return {};
  run_mlp(ctx, slot.norm2.y(), pass, slot, delta);
  return {slot.norm2.x, delta};
}

ResidualStream Block::forward_parallel(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                       Slot& slot) const {
  const View delta = pass.scratch.delta;
  norm1_.forward(ctx, in.residual, in.delta, slot.norm1);
  run_attention(ctx, slot.norm1.y(), pass, slot, delta);
  norm2_.forward(ctx, slot.norm1.x, {}, slot.norm2);
  if (ends_at_mlp(ctx, pass, slot)) return {};
  run_mlp(ctx, slot.norm2.y(), pass, slot, pass.scratch.sublayer);
  ops::add(ctx, delta, pass.scratch.sublayer, delta);
  return {slot.norm1.x, delta};
}

ResidualStream Block::forward(Context& ctx, ResidualStream in, const ForwardPass& pass,
                              Slot& slot) const {
  if (config_.parallel) return forward_parallel(ctx, in, pass, slot);
  if (config_.pre_norm) return forward_before(ctx, in, pass, slot);
  const View delta = pass.scratch.delta;
  attention_.forward(ctx, in.residual, pass, slot.attention, delta);
  drop(ctx, pass.batch, Sublayer::attention, delta, delta);
  norm1_.forward(ctx, in.residual, delta, slot.norm1);
  mlp_.forward(ctx, slot.norm1.y(), pass, slot.mlp, delta);
  drop(ctx, pass.batch, Sublayer::mlp, delta, delta);
  norm2_.forward(ctx, slot.norm1.y(), delta, slot.norm2);
  return {slot.norm2.y(), {}};
}

void Block::backward(Context& ctx, const BackwardPass& pass, const Slot& slot, CView input,
                     View d) const {
  if (pass.part == BackwardPart::weight) {
    const CView mlp_x = config_.pre_norm ? slot.norm2.y() : slot.norm1.y();
    mlp_.backward(ctx, {}, mlp_x, pass, slot.mlp, {});
    attention_.backward(ctx, {}, config_.pre_norm ? slot.norm1.y() : input, pass, slot.attention,
                        {});
  } else if (config_.parallel) {
    backward_parallel(ctx, pass, slot, d);
  } else if (config_.pre_norm) {
    backward_before(ctx, pass, slot, d);
  } else {
    backward_after(ctx, pass, slot, input, d);
  }
}

/// The gradient of a sublayer's output from its norm's.
CView Block::through_norm(Context& ctx, const BackwardPass& pass, const Norm& norm,
                          const Norm::Slot& slot, CView dy) const {
  if (!norms_outputs()) return dy;
  norm.backward(ctx, slot, dy, Accumulate::no, pass.scratch.d_sublayer, pass.accumulate);
  return pass.scratch.d_sublayer;
}

/// With sublayers that read the same stream, whose outputs have no norm.
void Block::backward_parallel(Context& ctx, const BackwardPass& pass, const Slot& slot,
                              View d) const {
  const auto& [d_mid, d_stream] = std::pair(pass.scratch.d_mid, pass.scratch.d_sublayer);
  const bool recomputes = config_.recompute == Recompute::selective;
  CView dy = masked(ctx, pass.batch, Sublayer::mlp, pass.scratch, d);
  if (recomputes) norm2_.recompute(ctx, slot.norm2);
  mlp_.backward(ctx, dy, slot.norm2.y(), pass, slot.mlp, d_mid);
  norm2_.backward(ctx, slot.norm2, d_mid, Accumulate::no, d_stream, pass.accumulate);
  dy = masked(ctx, pass.batch, Sublayer::attention, pass.scratch, d);
  if (recomputes) norm1_.recompute(ctx, slot.norm1);
  attention_.backward(ctx, dy, slot.norm1.y(), pass, slot.attention, d_mid);
  norm1_.backward(ctx, slot.norm1, d_mid, Accumulate::yes, d_stream, pass.accumulate);
  ops::add(ctx, d, d_stream, d);
}

/// The biases of both sublayers' outputs around the second norm, if these enter the stream as is.
StreamBiases Block::stream_biases(const BackwardPass& pass) const {
  const bool drops_here = drops() && pass.batch.dropout;
  if (pass.part != BackwardPart::both || drops_here || norms_outputs() ||
      config_.group.cuts_rows() || !norm2_.trains()) {
    return {};
  }
  const StreamBiases biases = {.before = attention_.output_bias_gradient(),
                               .after = mlp_.output_bias_gradient()};
  return biases.before && biases.after ? biases : StreamBiases();
}

/// With norms before the sublayers, of their outputs, or both.
void Block::backward_before(Context& ctx, const BackwardPass& pass, const Slot& slot,
                            View d) const {
  const StreamBiases biases = stream_biases(pass);
  BackwardPass of_sublayers = pass;
  of_sublayers.skips_output_biases = static_cast<bool>(biases.before);
  const View d_mid = pass.scratch.d_mid;
  const bool recomputes = config_.recompute == Recompute::selective;
  CView dy = masked(ctx, pass.batch, Sublayer::mlp, pass.scratch, d);
  dy = through_norm(ctx, pass, mlp_norm_, slot.mlp_norm, dy);
  if (recomputes) norm2_.recompute(ctx, slot.norm2);
  mlp_.backward(ctx, dy, slot.norm2.y(), of_sublayers, slot.mlp, d_mid);
  norm2_.backward(ctx, slot.norm2, d_mid, Accumulate::yes, d, pass.accumulate, biases);
  dy = masked(ctx, pass.batch, Sublayer::attention, pass.scratch, d);
  dy = through_norm(ctx, pass, attention_norm_, slot.attention_norm, dy);
  if (recomputes) norm1_.recompute(ctx, slot.norm1);
  if (nothing_before_trains()) {
    return attention_.backward(ctx, dy, slot.norm1.y(), of_sublayers, slot.attention, {});
  }
  attention_.backward(ctx, dy, slot.norm1.y(), of_sublayers, slot.attention, d_mid);
  norm1_.backward(ctx, slot.norm1, d_mid, Accumulate::yes, d, pass.accumulate);
}

/// With norms after them.
void Block::backward_after(Context& ctx, const BackwardPass& pass, const Slot& slot, CView input,
                           View d) const {
  const View d_mid = pass.scratch.d_mid;
  norm2_.backward(ctx, slot.norm2, d, Accumulate::no, d, pass.accumulate);
  CView dy = masked(ctx, pass.batch, Sublayer::mlp, pass.scratch, d);
  mlp_.backward(ctx, dy, slot.norm1.y(), pass, slot.mlp, d_mid);
  ops::add(ctx, d, d_mid, d);
  norm1_.backward(ctx, slot.norm1, d, Accumulate::no, d, pass.accumulate);
  dy = masked(ctx, pass.batch, Sublayer::attention, pass.scratch, d);
  attention_.backward(ctx, dy, input, pass, slot.attention, d_mid);
  ops::add(ctx, d, d_mid, d);
}

}  // namespace hyperslab::nn
