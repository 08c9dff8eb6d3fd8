// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/attention.hpp"

#include <algorithm>

#include "attention_plan.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
Attention::Attention(param::ParamStore& params, const std::string& name, const BlockConfig& config,
                     SublayerPlace place)
    : config_(config), place_(place) {
  const TensorGroup& group = config.group;
  const Dim query_width = config.heads.heads * config.heads.head_width;
  const Dim kv_width = config.heads.kv_heads * config.heads.head_width;
  const KeyValueHeads kv = key_value_heads(config.heads, group);
  heads_ = {config.heads.heads / group.size(), kv.count, config.heads.head_width};
  core_heads_ = config.context_group.share(heads_);
  qkv_ = Linear(params, group,
                {{name + ".query", query_width, group.shard({query_width}, 0)},
                 {name + ".key", kv_width, kv.part, kv.replicas, kv.replica},
                 {name + ".value", kv_width, kv.part, kv.replicas, kv.replica}},
                {config.width, config.qkv_bias, config.init, Parallel::column, config.adapter,
                 config.fp8.of_block(place.layer, config.layers)});
  qk_norm_ = QueryKeyNorm(config.qk_norm, params, group, name, config.heads, config.norm_eps);
  if (config.sinks) {
    param::ParamSpec sinks = {name + ".sinks", {config.heads.heads}, param::Role::bias};
    sinks.init_std = config.init.std;
    sinks.part = group.shard(sinks.shape, 0);
    sinks_ = params.declare(sinks);
  }
  output_ = Linear(params, group, {{name + ".output", config.width}},
                   {query_width, config.bias, config.residual_init, Parallel::row, config.adapter,
                    config.fp8.of_block(place.layer, config.layers)});
}

/// The cache as a pass sees it: without pages the samples have equal parts of it.
ops::KeyValueCache Attention::cache(const TextPass& texts, Dim samples) const {
  if (texts.pages) return {cached_keys_, cached_values_, texts.past, texts.pages};
  const auto [all, page_tokens, width] = cached_keys_.dims<3>("cache");
  require(all * page_tokens % room_.rows == 0, "a cache without pages has rows of equal room");
  const Shape shape = {room_.rows, all * page_tokens / room_.rows, width};
  require(shape[1] >= room_.tokens,
          "a cache with pages for a part of its rows needs calls with pages");
  return {cached_keys_.reshaped(shape).slice(0, samples),
          cached_values_.reshaped(shape).slice(0, samples), texts.past};
}

ops::Dropout Attention::probability_dropout(const BatchInfo& batch) const {
  ops::Dropout dropout = {batch.dropout ? config_.dropout : 0.0F, config_.seed,
                          dropout_site(place_.layer, 2, place_.branch), batch.sample_position,
                          batch.state};
  dropout.first_head =
      config_.group.rank() * heads_.heads + config_.context_group.rank() * core_heads_.heads;
  dropout.total_heads = config_.heads.heads;
  return dropout;
}

LinearPass Attention::linear_pass(Adapted linear, const BatchInfo& batch, const Scratch& scratch,
                                  const Slot& slot) const {
  const bool is_output = linear == Adapted::output;
  const std::uint32_t site = adapter_site(place_.layer, static_cast<int>(linear), place_.branch);
  const Dim cut_columns = is_output ? config_.heads.heads * config_.heads.head_width : 0;
  return {.dropout = adapter_dropout(config_, site, cut_columns, batch),
          .reduced = is_output ? slot.output_reduced : slot.qkv_reduced,
          .reduced_gradient = scratch.adapter_gradient,
          .rounded_gradient = scratch.rounded_gradient,
          .amax = is_output ? slot.output_amax : slot.qkv_amax};
}

ops::AttentionScores Attention::scores(const BatchInfo& batch, View sink_weights) const {
  ops::AttentionScores scores = config_.scores;
  scores.first_keys = batch.first_keys;
  if (sinks_) scores.sinks = {core_part(sinks_.value()), sink_weights};
  return scores;
}

/// The part of a value of each head for the heads whose attention this rank computes.
template <class AnyView>
AnyView Attention::core_part(AnyView of_heads) const {
  return of_heads.slice(config_.context_group.rank() * core_heads_.heads, core_heads_.heads);
}

/// The widths of queries, keys and values of this tensor rank.
std::array<Dim, 3> Attention::sections() const {
  const Dim kv_width = heads_.kv_heads * heads_.head_width;
  return {heads_.heads * heads_.head_width, kv_width, kv_width};
}

/// slot.qkv, normalized and, but for a cache, rotated -> slot.out.
void Attention::core_forward(Context& ctx, const ForwardPass& pass, const Slot& slot) const {
  if (pass.texts) {
    require(config_.scores.mask.kind == ops::AttentionMask::Kind::causal,
            "attention on a cache: only a causal mask lets tokens be computed one after another");
    ops::attention_cached_forward(ctx, heads_, scores({}, {}),
                                  config_.rope ? pass.rope : RopeTables(), slot.qkv,
                                  cache(*pass.texts, slot.qkv.shape()[0]), slot.out);
  } else if (config_.keep_probabilities) {
    ops::attention_reference_forward(ctx, core_heads_, scores(pass.batch, slot.sink_weights),
                                     slot.qkv, probability_dropout(pass.batch), slot.out,
                                     slot.probabilities);
  } else {
    ops::attention_forward(ctx, core_heads_, scores(pass.batch, slot.sink_weights), slot.qkv,
                           slot.out, slot.log_sum_exp);
  }
}

void Attention::forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& values,
                        View y) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kAttentionComponent);
  const TensorGroup& group = config_.group;
  const Rows& rows = slot.rows;
  qkv_.forward_gathered(
      ctx, group, x, pass.scratch.gathered, rows.qkv,
      pass.with_fp8_weights(linear_pass(Adapted::qkv, pass.batch, pass.scratch, slot)));
  qk_norm_.forward(ctx, heads_, rows.qkv, slot.qk_norm, rows.out);  // out is not written yet
  if (config_.rope && !pass.texts) rotate(ctx, pass.rope, ops::Rotation::forward, rows.qkv);
  if (pass.texts) {
    core_forward(ctx, pass, slot);
  } else {
    config_.context_group.to_heads(ctx, sections(), rows.qkv, slot.exchange, slot.qkv);
    core_forward(ctx, pass, slot);
    config_.context_group.to_rows(ctx, std::array{sections()[0]}, slot.out, slot.exchange,
                                  rows.out);
  }
  output_.forward_summed(
      ctx, group, rows.out, group.term(y, pass.scratch.partial), y,
      pass.with_fp8_weights(linear_pass(Adapted::output, pass.batch, pass.scratch, slot)));
}

bool Attention::describe(int branch, const ForwardPass& pass, const SublayerSlot& slot,
                         ops::DecodeBlock& block, ops::DecodeStream& stream) const {
  const std::optional<ops::BlockWeights> qkv = qkv_.product();
  const std::optional<ops::BlockWeights> output = output_.product();
  if (branch != 0 || !pass.texts || !qkv || !output || config_.qk_norm != QkNorm::none ||
      !config_.group.is_alone()) {
    return false;
  }
  stream.qkv = slot_as<Slot>(slot).rows.qkv;
  block.qkv = *qkv;
  block.heads = heads_;
  block.scores = scores({}, {});
  block.tables = config_.rope ? pass.rope : RopeTables();
  block.cache = cache(*pass.texts, stream.qkv.shape()[0]);
  block.output = *output;
  return true;
}

/// The gradient of the bias of queries, keys and values, if it is the column sums of the gradient
/// that attention's op writes: neither rotated back nor taken through a norm.
View Attention::attended_bias_gradient(const BackwardPass& pass) const {
  const bool is_last =
      !config_.rope && config_.qk_norm == QkNorm::none && config_.context_group.is_alone();
  const bool sums = is_last && !config_.keep_probabilities && pass.part == BackwardPart::both;
  return sums ? qkv_.bias_gradient() : View();
}

/// slot.d_attention -> slot.d_qkv. `dbias`: of the bias of queries, keys and values, or absent.
void Attention::core_backward(Context& ctx, const BackwardPass& pass, const Slot& slot,
                              View dbias) const {
  const View d_qkv = slot.d_qkv;
  if (config_.keep_probabilities) {
    ops::attention_reference_backward(
        ctx, core_heads_, scores(pass.batch, slot.sink_weights), slot.d_attention,
        {slot.qkv, slot.probabilities, probability_dropout(pass.batch)}, slot.d_probabilities,
        d_qkv);
  } else {
    ops::attention_backward(ctx, core_heads_, scores(pass.batch, slot.sink_weights),
                            slot.d_attention, {slot.qkv, slot.out, slot.log_sum_exp},
                            {d_qkv, dbias, pass.accumulate});
  }
  if (sinks_ && sinks_.gradient()) sinks_backward(ctx, pass.accumulate, slot);
}

/// The gradients of the sinks of other context ranks' heads are theirs.
void Attention::sinks_backward(Context& ctx, Accumulate accumulate, const Slot& slot) const {
  const View all = sinks_.gradient();
  if (accumulate == Accumulate::no && !config_.context_group.is_alone()) ops::fill(ctx, 0, all);
  ops::attention_sinks_backward(ctx, core_heads_, slot.d_attention, slot.out, slot.sink_weights,
                                accumulate, core_part(all));
}

/// Turns queries and keys of this rank's tokens.
void Attention::rotate(Context& ctx, const RopeTables& tables, ops::Rotation rotation,
                       View qkv) const {
  const Dim first_token = config_.context_group.first_token(qkv.shape()[1]);
  ops::rope(ctx, heads_, tables.cosines, tables.sines, first_token, rotation, qkv);
}

/// slot.rows.d_attention -> slot.rows.d_qkv, through attention and back through rotation and norm.
void Attention::rows_backward(Context& ctx, const BackwardPass& pass, const Slot& slot,
                              View dbias) const {
  const Rows& rows = slot.rows;
  config_.context_group.to_heads(ctx, std::array{sections()[0]}, rows.d_attention, slot.exchange,
                                 slot.d_attention);
  core_backward(ctx, pass, slot, dbias);
  config_.context_group.to_rows(ctx, sections(), slot.d_qkv, slot.exchange, rows.d_qkv);
  if (config_.rope) rotate(ctx, pass.rope, ops::Rotation::inverse, rows.d_qkv);
  qk_norm_.backward(ctx, heads_, slot.qk_norm, pass.accumulate, rows.d_qkv, rows.d_attention);
}

void Attention::backward(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                         const SublayerSlot& values, View dx) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kAttentionComponent);
  if (pass.part == BackwardPart::weight) return backward_weight(ctx, x, pass, slot);
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  if (pass.part == BackwardPart::input) ops::cast(ctx, dy, slot.dy);
  LinearPass of_output = output_.backward_input_gathered(
      ctx, group, dy, gathered, slot.rows.d_attention,
      pass.before_weights(linear_pass(Adapted::output, pass.batch, pass.scratch, slot)));
  of_output.skips_bias = pass.skips_output_biases;
  comm::Ticket rows = 0;
  if (pass.part == BackwardPart::both) {
    const CView all_dy = group.cuts_rows() ? CView(gathered) : dy;
    output_.backward_weight(ctx, all_dy, slot.rows.out, pass.accumulate, of_output);
    rows = group.start_gather(ctx, x, gathered);
  }
  const View qkv_bias = attended_bias_gradient(pass);
  rows_backward(ctx, pass, slot, qkv_bias);
  LinearPass of_qkv =
      pass.before_weights(linear_pass(Adapted::qkv, pass.batch, pass.scratch, slot));
  of_qkv.skips_bias = static_cast<bool>(qkv_bias);
  TensorGroup::Sums sums;
  if (dx) {
    const View term = group.term(dx, pass.scratch.partial);
    const Linear::SummedPass summed =
        qkv_.backward_input_summed(ctx, group, slot.rows.d_qkv, term, dx, of_qkv);
    of_qkv = summed.pass;
    sums = summed.sums;
  }
  if (pass.part == BackwardPart::both) {
    group.wait(ctx, rows);
    qkv_.backward_weight(ctx, slot.rows.d_qkv, group.cuts_rows() ? CView(gathered) : x,
                         pass.accumulate, of_qkv);
  }
  group.wait(ctx, sums);
}

void Attention::backward_weight(Context& ctx, CView x, const BackwardPass& pass,
                                const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  output_.backward_weight(ctx, group.gather(ctx, slot.dy, gathered), slot.rows.out, pass.accumulate,
                          linear_pass(Adapted::output, pass.batch, pass.scratch, slot));
  qkv_.backward_weight(ctx, slot.rows.d_qkv, group.gather(ctx, x, gathered), pass.accumulate,
                       linear_pass(Adapted::qkv, pass.batch, pass.scratch, slot));
}

namespace {

Dim attention_gradient_bytes(const BlockConfig& config, const ActivationSpec& spec) {
  const ops::HeadLayout heads = heads_of_rank(config);
  return Fp8Product::kept_bytes(config.fp8, std::max(heads.packed_width(), config.width),
                                spec.B * spec.T);
}

SublayerCounts count_attention(const BlockConfig& config, Dim tokens) {
  const Dim query_width = config.heads.heads * config.heads.head_width;
  const Dim kv_width = config.heads.kv_heads * config.heads.head_width;
  SublayerCounts out;
  out.matrices = 2 * config.width * (query_width + kv_width);
  if (config.qkv_bias) out.vectors += query_width + 2 * kv_width;
  if (config.bias) out.vectors += config.width;
  if (config.qk_norm == QkNorm::head) out.vectors += 2 * config.heads.head_width;
  if (config.qk_norm == QkNorm::width) out.vectors += query_width + kv_width;
  if (config.sinks) out.vectors += config.heads.heads;
  out.pairs =
      2 * ops::seen_share(config.scores.mask, tokens) * static_cast<double>(query_width * tokens);
  return out;
}

}  // namespace

const SublayerType kAttention = {
    .name = "attention",
    .make = [](param::ParamStore& params, const std::string& name, const BlockConfig& config,
               SublayerPlace place) -> std::unique_ptr<Sublayer> {
      return std::make_unique<Attention>(params, name, config, place);
    },
    .plan_memory = plan_attention_memory,
    .rounded_gradient_bytes = attention_gradient_bytes,
    .count = count_attention};

}  // namespace hyperslab::nn
