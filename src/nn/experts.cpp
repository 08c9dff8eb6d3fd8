// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/experts.hpp"

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
namespace {

/// Rows of (..., inner width): the second product's input and its gradient.
Dim pre_width(const BlockConfig& config, Dim width) {
  return ops::is_gated(config.activation) ? 2 * width : width;
}

/// The network that all shared experts are together.
BlockConfig shared_config(const BlockConfig& config) {
  BlockConfig shared = config;
  shared.ffn_width = config.experts.shared * config.experts.width;
  shared.bias = false;
  shared.mlp_rows = 0;
  shared.adapter = {};
  shared.fp8 = {};
  return shared;
}

param::FusedParam declare_router(param::ParamStore& params, const std::string& name,
                                 const BlockConfig& config) {
  param::ParamSpec weight = {
      name + ".router.weight", {config.experts.count, config.width}, param::Role::router};
  weight.init_std = config.init.std_of(config.width, config.experts.count);
  // A rank's outputs of experts are terms of a sum, and so are the gradients of their weights.
  weight.placement.tensor = config.group.placement(layout::partial());
  return params.declare(weight);
}

param::FusedParam declare_bias(param::ParamStore& params, const std::string& name,
                               const BlockConfig& config) {
  if (!config.experts.has_bias()) return {};
  param::ParamSpec bias = {
      name + ".router.bias", {config.experts.count}, param::Role::bias, param::Init::zeros};
  bias.placement.tensor = config.group.placement(layout::replicate());
  bias.is_buffer = true;
  return params.declare(bias);
}

/// The matrices of all experts, one after the other; `up`: the first ones, of gate and up.
param::FusedParam declare_experts(param::ParamStore& params, const std::string& name,
                                  const BlockConfig& config, bool up) {
  const Dim F = config.experts.width;
  const bool gated = up && ops::is_gated(config.activation);
  std::vector<param::ParamSpec> specs;
  const auto add = [&](Dim expert, const char* matrix) {
    param::ParamSpec spec = {name + "." + std::to_string(expert) + "." + matrix + ".weight",
                             up ? Shape{F, config.width} : Shape{config.width, F}};
    spec.init_std = up ? config.init.std_of(config.width, gated ? 2 * F : F)
                       : config.residual_init.std_of(F, config.width);
    const int dim = up ? 0 : 1;
    spec.part = config.group.shard(spec.shape, dim);
    spec.placement.tensor = layout::shard(dim);
    specs.push_back(spec);
  };
  for (Dim expert = 0; expert < config.experts.count; ++expert) {
    if (gated) add(expert, "gate");
    add(expert, up ? "up" : "down");
  }
  return params.declare(specs);
}

/// Memory that all slots use in turn, as Experts::Slot has it; `activated` with
/// Recompute::selective only.
struct ExpertsMemory {
  View gathered;
  View activated;
  View d_activated;
  View d_row_weights;
  View d_weights;
  View d_wide_logits;
  View shared_out;
  SublayerMemory shared;
};

View take_gathered(Arena& arena, const BlockConfig& config, const ActivationSpec& spec) {
  const Dim rows = spec.B * spec.T * config.experts.active;
  return arena.take(spec.compute, {rows, config.width}, "rows of experts");
}

SublayerMemory plan_experts_memory(Arena& arena, const BlockConfig& config,
                                   const ActivationSpec& spec) {
  const Dim N = spec.B * spec.T;
  const Dim K = config.experts.active;
  const Dim width = config.experts.width / config.group.size();
  ExpertsMemory memory;
  memory.gathered = take_gathered(arena, config, spec);
  if (config.recompute == Recompute::selective) {
    memory.activated = arena.take(spec.compute, {N * K, width}, "activated of experts");
  }
  memory.d_activated = arena.take(spec.compute, {N * K, width}, "d_activated of experts");
  memory.d_row_weights = arena.take(spec.statistics, {N * K}, "d_row_weights of experts");
  memory.d_weights = arena.take(spec.statistics, {N, K}, "d_weights of experts");
  memory.d_wide_logits =
      arena.take(spec.statistics, {N, config.experts.count}, "d_logits of experts");
  if (config.experts.shared > 0) {
    memory.shared_out = arena.take(
        spec.compute, config.group.stream_shape(spec.B, spec.T, config.width), "shared experts");
    memory.shared = kMlp.plan_memory(arena, shared_config(config), spec);
  }
  return memory;
}

}  // namespace

Experts::Experts(param::ParamStore& params, const std::string& name, const BlockConfig& config,
                 SublayerPlace place)
    : config_(config),
      rule_(config.experts.rule()),
      index_(config.experts.layers_of(place.layer)),
      width_(config.experts.width / config.group.size()),
      router_(declare_router(params, name, config)),
      bias_(declare_bias(params, name, config)),
      up_(declare_experts(params, name, config, true)),
      down_(declare_experts(params, name, config, false)) {
  if (config.experts.shared == 0) return;
  shared_ = std::make_unique<Mlp>(params, name + ".shared", shared_config(config), place);
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
  const auto* given = std::any_cast<ExpertsMemory>(&shared);
  const ExpertsMemory memory = given != nullptr ? *given : ExpertsMemory();
  Slot slot;
  slot.logits = take(statistics, {N, E}, ".logits");
  slot.chosen = take(DType::i32, {N, K}, ".chosen");
  slot.weights = take(statistics, {N, K}, ".weights");
  if (given != nullptr) {
    slot.statistics = take(statistics, {B, ops::router_statistics_width(E)}, ".statistics");
  }
  slot.first_rows = take(DType::i32, {E + 1}, ".first rows");
  slot.pairs = take(DType::i32, {N * K}, ".pairs");
  slot.rows = take(DType::i32, {N, K}, ".rows");
  slot.row_weights = take(statistics, {N * K}, ".row weights");
  slot.pre = take(compute, {N * K, pre_width(config_, width_)}, ".pre");
  slot.activated =
      memory.activated ? memory.activated : take(compute, {N * K, width_}, ".activated");
  const Shape stream = config_.group.stream_shape(B, T, config_.width);
  if (config_.split_backward) slot.dy = take(compute, stream, ".dy");
  if (given != nullptr) slot.dlogits = take(compute, {N, E}, ".dlogits");
  slot.gathered = memory.gathered ? memory.gathered : take_gathered(activations, config_, spec);
  slot.d_activated = memory.d_activated;
  slot.d_row_weights = memory.d_row_weights;
  slot.d_weights = memory.d_weights;
  slot.d_wide_logits = memory.d_wide_logits;
  if (!shared_) return slot;
  slot.shared_out = memory.shared_out ? memory.shared_out : take(compute, stream, ".shared output");
  slot.shared = shared_->plan(activations, memory.shared, spec, label + ".shared");
  return slot;
}

SublayerSlot Experts::for_tokens(const SublayerSlot& slot, const TokenCount& count) const {
  const auto& all = slot_as<Slot>(slot);
  const Dim N = count.B * count.T;
  const Dim R = N * rule_.active;
  Slot out;
  out.logits = all.logits.slice(0, N);
  out.chosen = all.chosen.slice(0, N);
  out.weights = all.weights.slice(0, N);
  out.first_rows = all.first_rows;
  out.pairs = all.pairs.slice(0, R);
  out.rows = all.rows.slice(0, N);
  out.row_weights = all.row_weights.slice(0, R);
  out.pre = all.pre.slice(0, R);
  out.activated = all.activated.slice(0, R);
  out.gathered = all.gathered.slice(0, R);
  if (!shared_) return out;
  out.shared_out = nn::for_tokens(all.shared_out, count);
  out.shared = shared_->for_tokens(all.shared, count);
  return out;
}

/// The experts of all tokens, their weights, and the order of rows.
void Experts::choose(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const {
  ops::matmul(ctx, x, ops::Trans::no, router_.value(), ops::Trans::yes, Accumulate::no,
              slot.logits);
  ops::route(ctx, rule_, slot.logits, bias_ ? bias_.value() : CView(), slot.chosen, slot.weights);
  ops::sort_by_expert(ctx, slot.chosen, slot.first_rows, slot.pairs, slot.rows);
  ops::gather_rows(ctx, slot.weights.reshaped({slot.pairs.numel(), 1}), slot.pairs, 1,
                   slot.row_weights.reshaped({slot.pairs.numel(), 1}));
  if (slot.statistics && pass.batch.trains()) count_losses(ctx, pass, slot);
}

/// The router's terms of the loss, of whole samples. One rank of those that share a sample adds
/// them up.
void Experts::count_losses(Context& ctx, const ForwardPass& pass, const Slot& slot) const {
  ops::router_statistics(ctx, rule_, slot.logits, slot.chosen, slot.statistics);
  config_.context_group.sum(ctx, slot.statistics);
  if (pass.repeated || !config_.group.is_first() || config_.context_group.rank() > 0) return;
  const Dim tokens = slot.logits.rows() / slot.statistics.rows();
  ops::add_router_statistics(ctx, rule_, config_.context_group.all_tokens(tokens), slot.statistics,
                             pass.batch.sums,
                             pass.batch.loads.slice(index_, 1).reshaped({rule_.count}));
}

void Experts::forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& values,
                      View y) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kFfnComponent);
  const TensorGroup& group = config_.group;
  const CView all = group.gather(ctx, x, pass.scratch.gathered).as_matrix();
  choose(ctx, all, pass, slot);
  ops::gather_rows(ctx, all, slot.pairs, rule_.active, slot.gathered);
  ops::experts_forward(ctx, slot.gathered, up_.value(), slot.first_rows, slot.pre);
  ops::weighted_activation_forward(ctx, config_.activation, slot.pre, slot.row_weights,
                                   slot.activated);
  ops::experts_forward(ctx, slot.activated, down_.value(), slot.first_rows, slot.gathered);
  const View term = group.term(y, pass.scratch.partial);
  ops::sum_rows(ctx, slot.gathered, slot.rows, term.as_matrix());
  group.sum(ctx, term, y);
  if (!shared_) return;
  shared_->forward(ctx, x, pass, slot.shared, slot.shared_out);
  ops::add(ctx, y, slot.shared_out, y);
}

/// d_activated, from there d_pre, in place, and the gradients of rows' weights.
void Experts::backward_rows(Context& ctx, CView dy, const BackwardPass& pass,
                            const Slot& slot) const {
  if (config_.recompute == Recompute::selective) {
    ops::weighted_activation_forward(ctx, config_.activation, slot.pre, slot.row_weights,
                                     slot.activated);
  }
  ops::gather_rows(ctx, dy, slot.pairs, rule_.active, slot.gathered);
  ops::experts_backward_input(ctx, slot.gathered, down_.value(), slot.first_rows, slot.d_activated);
  if (pass.part == BackwardPart::both) {
    weight_gradient(ctx, down_, slot.gathered, slot.activated, pass, slot);
  }
  ops::weighted_activation_backward(ctx, config_.activation, slot.pre, slot.row_weights,
                                    slot.d_activated, slot.pre, slot.d_row_weights);
}

void Experts::backward_router(Context& ctx, const BackwardPass& pass, const Slot& slot) const {
  const Dim pairs = slot.pairs.numel();
  ops::gather_rows(ctx, slot.d_row_weights.reshaped({pairs, 1}), slot.rows.reshaped({pairs}), 1,
                   slot.d_weights.reshaped({pairs, 1}));
  ops::RouterGradient gradient = {slot.d_weights, {}};
  if (slot.statistics && config_.group.is_first()) {
    const Dim tokens = slot.logits.rows() / slot.statistics.rows();
    gradient.losses = config_.experts.losses(config_.context_group.all_tokens(tokens));
    gradient.statistics = slot.statistics;
    gradient.state = pass.batch.state;
  }
  ops::route_backward(ctx, rule_, slot.logits, slot.chosen, gradient, slot.d_wide_logits);
  ops::cast(ctx, slot.d_wide_logits, slot.dlogits);
}

/// Of the matrices that are not frozen.
void Experts::weight_gradient(Context& ctx, const param::FusedParam& weight, CView dy, CView x,
                              const BackwardPass& pass, const Slot& slot) const {
  const View gradient = weight.gradient();
  if (!gradient) return;
  ops::experts_backward_weight(ctx, dy, x, slot.first_rows, pass.accumulate, gradient);
}

void Experts::router_gradient(Context& ctx, CView x, const BackwardPass& pass,
                              const Slot& slot) const {
  const View gradient = router_.gradient();
  if (!gradient) return;
  ops::linear_backward_weight(ctx, slot.dlogits, x, pass.accumulate, gradient, {});
}

void Experts::backward_input(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                             const Slot& slot, View dx) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  if (pass.part == BackwardPart::input) ops::cast(ctx, dy, slot.dy);
  backward_rows(ctx, group.gather(ctx, dy, gathered).as_matrix(), pass, slot);
  backward_router(ctx, pass, slot);
  if (pass.part == BackwardPart::both) {
    const CView all = group.gather(ctx, x, gathered).as_matrix();
    ops::gather_rows(ctx, all, slot.pairs, rule_.active, slot.gathered);
    weight_gradient(ctx, up_, slot.pre, slot.gathered, pass, slot);
    router_gradient(ctx, all, pass, slot);
  }
  if (!dx) return;
  ops::experts_backward_input(ctx, slot.pre, up_.value(), slot.first_rows, slot.gathered);
  const View term = group.term(dx, pass.scratch.partial);
  ops::sum_rows(ctx, slot.gathered, slot.rows, term.as_matrix());
  ops::linear_backward_input(ctx, slot.dlogits, router_.value(), Accumulate::yes, term.as_matrix());
  group.sum(ctx, term, dx);
}

void Experts::backward_weight(Context& ctx, CView x, const BackwardPass& pass,
                              const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const View gathered = pass.scratch.gathered;
  const CView dy = group.gather(ctx, slot.dy, gathered).as_matrix();
  ops::gather_rows(ctx, dy, slot.pairs, rule_.active, slot.gathered);
  weight_gradient(ctx, down_, slot.gathered, slot.activated, pass, slot);
  const CView all = group.gather(ctx, x, gathered).as_matrix();
  ops::gather_rows(ctx, all, slot.pairs, rule_.active, slot.gathered);
  weight_gradient(ctx, up_, slot.pre, slot.gathered, pass, slot);
  router_gradient(ctx, all, pass, slot);
}

void Experts::after_step(Context& ctx, CView loads, const ops::StepState* state) const {
  if (!bias_ || config_.adapter) return;  // adapters leave the model as it is
  ops::update_router_bias(ctx, static_cast<float>(config_.experts.bias_rate),
                          loads.slice(index_, 1).reshaped({rule_.count}), state,
                          bias_.members().front()->value);
}

void Experts::backward(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                       const SublayerSlot& values, View dx) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kFfnComponent);
  if (pass.part == BackwardPart::weight) {
    backward_weight(ctx, x, pass, slot);
  } else {
    backward_input(ctx, dy, x, pass, slot, dx);
  }
  if (!shared_) return;
  shared_->backward(ctx, dy, x, pass, slot.shared, dx ? slot.shared_out : View());
  if (dx) ops::add(ctx, dx, slot.shared_out, dx);
}

namespace {

SublayerCounts count_experts(const BlockConfig& config, Dim /*tokens*/) {
  const ExpertsConfig& experts = config.experts;
  const Dim matrices = ops::is_gated(config.activation) ? 3 : 2;
  const Dim one = matrices * config.width * experts.width;
  SublayerCounts out;
  out.matrices = (experts.active + experts.shared) * one + experts.count * config.width;
  out.idle = (experts.count - experts.active) * one;
  if (experts.has_bias()) out.vectors = experts.count;
  return out;
}

}  // namespace

const SublayerType kExperts = {
    .name = "experts",
    .make = [](param::ParamStore& params, const std::string& name, const BlockConfig& config,
               SublayerPlace place) -> std::unique_ptr<Sublayer> {
      return std::make_unique<Experts>(params, name, config, place);
    },
    .plan_memory = plan_experts_memory,
    .rounded_gradient_bytes = [](const BlockConfig& /*config*/,
                                 const ActivationSpec& /*spec*/) -> Dim { return 0; },
    .count = count_experts};

}  // namespace hyperslab::nn
