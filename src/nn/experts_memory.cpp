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

Dim rows_at_once(const BlockConfig& config, const ActivationSpec& spec) {
  return config.expert_group.rows_at_once(spec.B * spec.T, config.experts.rule());
}

/// Values between the adapters of a product, of a row.
Dim adapter_ranks(const BlockConfig& config, bool up) {
  const auto ranks = [&](AdapterTarget target) -> Dim {
    return config.adapter.applies_to(name_of(target)) ? config.adapter.rank : 0;
  };
  if (!up) return ranks(AdapterTarget::down);
  const Dim gate = ops::is_gated(config.activation) ? ranks(AdapterTarget::gate) : 0;
  return gate + ranks(AdapterTarget::up);
}

/// activated: memory of other layers, too; absent: of this one.
Experts::Kept take_kept(Arena& arena, const BlockConfig& config, const ActivationSpec& spec,
                        View activated, const std::string& label) {
  const Dim rows = rows_at_once(config, spec);
  const Dim width = config.experts.width / config.group.size();
  const auto take = [&](Dim columns, const char* name) {
    return columns == 0 ? View() : arena.take(spec.compute, {rows, columns}, label + name);
  };
  Experts::Kept kept;
  kept.pre = take(pre_width(config, width), ".pre");
  kept.activated = activated ? activated : take(width, ".activated");
  kept.up_reduced = take(adapter_ranks(config, true), ".up adapters");
  kept.down_reduced = take(adapter_ranks(config, false), ".down adapters");
  return kept;
}

/// The memory that a forward pass needs, too.
void take_rows(Arena& arena, const BlockConfig& config, const ActivationSpec& spec, bool trains,
               Experts::Memory& memory) {
  const ExpertExchange::Sizes sizes = {spec.B * spec.T, config.width, spec.compute, spec.statistics,
                                       trains};
  memory.room = config.expert_group.exchange().take_room(arena, sizes, config.experts.rule());
  memory.values_here =
      arena.take(spec.compute, {rows_at_once(config, spec), config.width}, "rows of experts");
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
  const Dim at_once = rows_at_once(config, spec);
  const Dim width = config.experts.width / config.group.size();
  Experts::Memory memory;
  take_rows(arena, config, spec, true, memory);
  if (config.recompute == Recompute::selective) {
    memory.activated = arena.take(spec.compute, {at_once, width}, "activated of experts");
  }
  if (at_once < most) memory.more = take_kept(arena, config, spec, {}, "further experts");
  memory.d_activated = arena.take(spec.compute, {at_once, width}, "d_activated of experts");
  memory.d_weights_here = arena.take(spec.statistics, {most}, "d_weights of rows");
  memory.d_weights = arena.take(spec.statistics, {N, config.experts.active}, "d_weights");
  memory.d_wide_logits =
      arena.take(spec.statistics, {N, config.experts.count}, "d_logits of experts");
  const Dim ranks = std::max(adapter_ranks(config, true), adapter_ranks(config, false));
  if (ranks > 0) {
    memory.reduced_gradient =
        arena.take(spec.compute, {at_once, ranks}, "adapter gradient of experts");
  }
  if (config.experts.shared > 0) {
    memory.shared = kMlp.plan_memory(arena, shared_config(config), spec);
  }
  return memory;
}

/// The memory of a microbatch's rows.
Experts::Rows Experts::plan_rows(Arena& activations, const Memory& memory,
                                 const ActivationSpec& spec, const std::string& label) const {
  return {.weights =
              activations.take(spec.statistics, {most_rows(config_, spec)}, label + ".row weights"),
          .d_weights = memory.d_weights_here,
          .kept = take_kept(activations, config_, spec, memory.activated, label),
          .values = memory.values_here,
          .d_activated = memory.d_activated,
          .reduced_gradient = memory.reduced_gradient};
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

Experts::Rows Experts::Rows::part(Dim first, Dim count, const Kept& of_part) const {
  const auto rows = [&](View view, Dim from) { return view ? view.slice(from, count) : view; };
  return {.weights = rows(weights, first),
          .d_weights = rows(d_weights, first),
          .kept = {.pre = rows(of_part.pre, 0),
                   .activated = rows(of_part.activated, 0),
                   .up_reduced = rows(of_part.up_reduced, 0),
                   .down_reduced = rows(of_part.down_reduced, 0)},
          .values = rows(values, 0),
          .d_activated = rows(d_activated, 0),
          .reduced_gradient = rows(reduced_gradient, 0)};
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
  const Dim at_once = config_.expert_group.rows_at_once(N, rule_);
  out.way = all.way.of_tokens(N, rule_.active, ranks, most, at_once);
  out.here = all.here.part(0, at_once, all.here.kept);
  out.here.weights = all.here.weights.slice(0, most);
  out.memory.room = all.memory.room.of_tokens(N, rule_.active, ranks);
  if (!shared_) return out;
  out.memory.shared_out = nn::for_tokens(all.memory.shared_out, count);
  out.shared = shared_->for_tokens(all.shared, count);
  return out;
}

}  // namespace hyperslab::nn
