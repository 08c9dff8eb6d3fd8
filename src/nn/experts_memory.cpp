// SPDX-License-Identifier: Apache-2.0
#include "experts_memory.hpp"

#include <algorithm>

namespace hyperslab::nn {

BlockConfig shared_config(const BlockConfig& config) {
  BlockConfig shared = config;
  shared.ffn_width = config.experts.shared * config.experts.width;
  shared.bias = false;
  shared.mlp_rows = 0;
  shared.fp8 = {};
  return shared;
}

namespace {

/// The columns before the activation.
Dim pre_width(const BlockConfig& config, Dim width) {
  return ops::is_gated(config.activation) ? 2 * width : width;
}

Dim most_rows(const BlockConfig& config, const ActivationSpec& spec) {
  return config.expert_group.most_rows(spec.B * spec.T, config.experts.rule());
}

/// The most values between the adapters of one product, of a row.
Dim most_ranks(const BlockConfig& config) {
  const auto ranks = [&](AdapterTarget target) -> Dim {
    return config.adapter.applies_to(name_of(target)) ? config.adapter.rank : 0;
  };
  const Dim gate = ops::is_gated(config.activation) ? ranks(AdapterTarget::gate) : 0;
  return std::max(gate + ranks(AdapterTarget::up), ranks(AdapterTarget::down));
}

/// The memory that a forward pass needs, too.
void take_rows(Arena& arena, const BlockConfig& config, const ActivationSpec& spec, bool trains,
               Experts::Memory& memory) {
  const ExpertExchange::Sizes sizes = {spec.B * spec.T, config.width, spec.compute, spec.statistics,
                                       trains};
  memory.room = config.expert_group.exchange().take_room(arena, sizes, config.experts.rule());
  memory.values_here =
      arena.take(spec.compute, {most_rows(config, spec), config.width}, "rows of experts");
  if (config.experts.shared > 0) {
    memory.shared_out = arena.take(
        spec.compute, config.group.stream_shape(spec.B, spec.T, config.width), "shared experts");
  }
}

}  // namespace

SublayerMemory plan_experts_memory(Arena& arena, const BlockConfig& config,
                                   const ActivationSpec& spec) {
  const Dim N = spec.B * spec.T;
  const Dim most = most_rows(config, spec);
  const Dim width = config.experts.width / config.group.size();
  Experts::Memory memory;
  take_rows(arena, config, spec, true, memory);
  if (config.recompute == Recompute::selective) {
    memory.activated = arena.take(spec.compute, {most, width}, "activated of experts");
  }
  memory.d_activated = arena.take(spec.compute, {most, width}, "d_activated of experts");
  memory.d_weights_here = arena.take(spec.statistics, {most}, "d_weights of rows");
  memory.d_weights = arena.take(spec.statistics, {N, config.experts.active}, "d_weights");
  memory.d_wide_logits =
      arena.take(spec.statistics, {N, config.experts.count}, "d_logits of experts");
  if (const Dim ranks = most_ranks(config); ranks > 0) {
    memory.reduced_gradient =
        arena.take(spec.compute, {most, ranks}, "adapter gradient of experts");
  }
  if (config.experts.shared > 0) {
    memory.shared = kMlp.plan_memory(arena, shared_config(config), spec);
  }
  return memory;
}

/// The memory of a microbatch's rows.
Experts::Rows Experts::plan_rows(Arena& activations, const Memory& memory,
                                 const ActivationSpec& spec, const std::string& label) const {
  const Dim most = most_rows(config_, spec);
  const auto take = [&](DType dtype, const Shape& shape, const char* name) {
    return activations.take(dtype, shape, label + name);
  };
  const auto take_reduced = [&](const ExpertLinear& linear, const char* name) {
    const Dim ranks = linear.adapter_ranks();
    return ranks == 0 ? View() : take(spec.compute, {most, ranks}, name);
  };
  return {.weights = take(spec.statistics, {most}, ".row weights"),
          .pre = take(spec.compute, {most, pre_width(config_, width_)}, ".pre"),
          .activated = memory.activated ? memory.activated
                                        : take(spec.compute, {most, width_}, ".activated"),
          .values = memory.values_here,
          .d_activated = memory.d_activated,
          .d_weights = memory.d_weights_here,
          .up_reduced = take_reduced(up_, ".up adapters"),
          .down_reduced = take_reduced(down_, ".down adapters"),
          .reduced_gradient = memory.reduced_gradient,
          .most = most};
}

SublayerSlot Experts::plan(Arena& activations, const SublayerMemory& shared,
                           const ActivationSpec& spec, const std::string& label) const {
  const auto& [B, T, compute, statistics] = spec;
  const Dim N = B * T;
  const Dim E = rule_.count;
  const Dim K = rule_.active;
  const auto take = [&](DType dtype, const Shape& shape, const char* name) {
    return activations.take(dtype, shape, label + name);
  };
  const auto* given = std::any_cast<Memory>(&shared);
  Slot slot;
  if (given != nullptr) {
    slot.memory = *given;
    slot.statistics =
        take(statistics, {B / config_.experts.balance_samples, ops::router_statistics_width(E)},
             ".statistics");
    slot.dlogits = take(compute, {N, E}, ".dlogits");
  } else {
    take_rows(activations, config_, spec, false, slot.memory);
  }
  slot.logits = take(statistics, {N, E}, ".logits");
  slot.chosen = take(DType::i32, {N, K}, ".chosen");
  slot.weights = take(statistics, {N, K}, ".weights");
  slot.way = config_.expert_group.exchange().take_way(activations, N, rule_, label);
  const Memory& memory = slot.memory;
  slot.here = plan_rows(activations, memory, spec, label);
  if (config_.split_backward) {
    slot.dy = take(compute, config_.group.stream_shape(B, T, config_.width), ".dy");
  }
  if (shared_) slot.shared = shared_->plan(activations, memory.shared, spec, label + ".shared");
  return slot;
}

Experts::Rows Experts::Rows::first(Dim rows) const {
  const auto part = [&](View view) { return view ? view.slice(0, rows) : view; };
  return {.weights = part(weights),
          .pre = part(pre),
          .activated = part(activated),
          .values = part(values),
          .d_activated = part(d_activated),
          .d_weights = part(d_weights),
          .up_reduced = part(up_reduced),
          .down_reduced = part(down_reduced),
          .reduced_gradient = part(reduced_gradient),
          .most = most};
}

SublayerSlot Experts::for_tokens(const SublayerSlot& slot, const TokenCount& count) const {
  const auto& all = slot_as<Slot>(slot);
  const Dim N = count.B * count.T;
  const int ranks = config_.expert_group.size();
  const Dim most = config_.expert_group.most_rows(N, rule_);
  Slot out;
  out.logits = all.logits.slice(0, N);
  out.chosen = all.chosen.slice(0, N);
  out.weights = all.weights.slice(0, N);
  out.way = all.way.of_tokens(N, rule_.active, ranks, most);
  out.here = all.here.first(most);
  out.memory.room = all.memory.room.of_tokens(N, rule_.active, ranks);
  if (!shared_) return out;
  out.memory.shared_out = nn::for_tokens(all.memory.shared_out, count);
  out.shared = shared_->for_tokens(all.shared, count);
  return out;
}

}  // namespace hyperslab::nn
