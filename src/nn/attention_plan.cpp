// SPDX-License-Identifier: Apache-2.0
#include "attention_plan.hpp"

namespace hyperslab::nn {

KeyValueHeads key_value_heads(const ops::HeadLayout& heads, const TensorGroup& group) {
  if (heads.kv_heads % group.size() == 0) {
    return {heads.kv_heads / group.size(), group.shard({heads.kv_heads * heads.head_width}, 0), 1,
            0};
  }
  const int replicas = group.size() / static_cast<int>(heads.kv_heads);
  const Dim first = group.rank() / replicas * heads.head_width;
  return {1, {{first}, {heads.head_width}}, replicas, group.rank() % replicas};
}

ops::HeadLayout heads_of_rank(const BlockConfig& config) {
  const KeyValueHeads kv = key_value_heads(config.heads, config.group);
  return {config.heads.heads / config.group.size(), kv.count, config.heads.head_width};
}

namespace {

/// Gradients that all layers use in turn, as Attention::Slot has them.
struct AttentionMemory {
  View d_attention;
  View d_qkv;
  View d_probabilities;
  Attention::Rows rows;  ///< without `out`; absent in a context group of one
  ContextGroup::Buffers exchange;
};

/// The memory of values on their way between rows and heads.
void take_exchange(Arena& arena, const BlockConfig& config, const ActivationSpec& spec,
                   AttentionMemory& memory) {
  if (config.context_group.is_alone()) return;
  const ops::HeadLayout heads = heads_of_rank(config);
  const Shape packed = {spec.B, spec.T, heads.packed_width()};
  const Shape attended = {spec.B, spec.T, heads.heads * heads.head_width};
  memory.exchange = config.context_group.take_buffers(arena, spec.compute, packed.numel());
  memory.rows.qkv = memory.rows.d_qkv = arena.take(spec.compute, packed, "rows.qkv");
  memory.rows.d_attention = arena.take(spec.compute, attended, "rows.d_attention");
}

}  // namespace

SublayerMemory plan_attention_memory(Arena& arena, const BlockConfig& config,
                                     const ActivationSpec& spec) {
  const auto& [B, own, compute, statistics] = spec;
  const Dim T = config.context_group.all_tokens(own);
  const ops::HeadLayout heads = config.context_group.share(heads_of_rank(config));
  AttentionMemory memory;
  take_exchange(arena, config, spec, memory);
  memory.d_attention = arena.take(compute, {B, T, heads.heads * heads.head_width}, "d_attention");
  if (!config.split_backward || !config.context_group.is_alone()) {
    memory.d_qkv = arena.take(compute, {B, T, heads.packed_width()}, "d_qkv");
  }
  if (config.keep_probabilities) {
    memory.d_probabilities = arena.take(compute, {B, heads.heads, T, T}, "d_probabilities");
  }
  return memory;
}

/// The values of attention itself.
void Attention::plan_core(Arena& activations, const ActivationSpec& spec, const std::string& label,
                          Slot& slot) const {
  const auto& [B, own, compute, statistics] = spec;
  const Dim T = config_.context_group.all_tokens(own);
  const ops::HeadLayout& heads = core_heads_;
  slot.qkv = activations.take(compute, {B, T, heads.packed_width()}, label + ".qkv");
  slot.qk_norm =
      qk_norm_.plan(activations, {B, own}, heads_, compute, statistics, label + ".qk_norm");
  slot.out = activations.take(compute, {B, T, heads.heads * heads.head_width}, label + ".output");
  if (config_.keep_probabilities) {
    slot.probabilities =
        activations.take(compute, {B, heads.heads, T, T}, label + ".probabilities");
  } else {
    slot.log_sum_exp = activations.take(statistics, {B, heads.heads, T}, label + ".log_sum_exp");
  }
  if (config_.sinks) {
    slot.sink_weights = activations.take(statistics, {B, heads.heads, T}, label + ".sink_weights");
  }
}

SublayerSlot Attention::plan(Arena& activations, const SublayerMemory& shared,
                             const ActivationSpec& spec, const std::string& label) const {
  const auto& [B, T, compute, statistics] = spec;
  Slot slot;
  AttentionMemory memory;
  if (const auto* taken = std::any_cast<AttentionMemory>(&shared)) {
    memory = *taken;
  } else {
    take_exchange(activations, config_, spec, memory);
  }
  slot.d_attention = memory.d_attention;
  slot.d_qkv = memory.d_qkv;
  slot.d_probabilities = memory.d_probabilities;
  plan_core(activations, spec, label, slot);
  slot.qkv_reduced = take_reduced(activations, spec, qkv_, label + ".qkv adapters");
  slot.output_reduced = take_reduced(activations, spec, output_, label + ".output adapters");
  slot.qkv_amax = take_amax(activations, config_.group, qkv_, label + ".qkv amax");
  slot.output_amax = take_amax(activations, config_.group, output_, label + ".output amax");
  if (config_.split_backward) {
    slot.dy =
        activations.take(compute, config_.group.stream_shape(B, T, config_.width), label + ".dy");
    memory.rows.d_qkv = activations.take(compute, {B, T, heads_.packed_width()}, label + ".d_qkv");
    if (config_.context_group.is_alone()) slot.d_qkv = memory.rows.d_qkv;
  }
  slot.exchange = memory.exchange;
  slot.rows = {slot.qkv, slot.out, slot.d_attention, slot.d_qkv};
  if (config_.context_group.is_alone()) return slot;
  slot.rows = memory.rows;
  slot.rows.out =
      activations.take(compute, {B, T, heads_.heads * heads_.head_width}, label + ".rows.output");
  return slot;
}

SublayerSlot Attention::for_tokens(const SublayerSlot& slot, const TokenCount& count) const {
  const auto& all = slot_as<Slot>(slot);
  Slot out;
  out.qkv = out.rows.qkv = nn::for_tokens(all.rows.qkv, count);
  out.out = out.rows.out = nn::for_tokens(all.rows.out, count);
  out.qk_norm = all.qk_norm.for_tokens(count);
  return out;
}

void Attention::plan_texts(Arena& memory, const TextRoom& room, DType compute,
                           const std::string& label) {
  room_ = room;
  const Shape shape = {room.pages, room.page_tokens, heads_.kv_heads * heads_.head_width};
  cached_keys_ = memory.take(compute, shape, label + ".cache.keys");
  cached_values_ = memory.take(compute, shape, label + ".cache.values");
}

}  // namespace hyperslab::nn
