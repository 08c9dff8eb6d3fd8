// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/experts.hpp"

#include <algorithm>

#include "experts_memory.hpp"
#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
namespace {

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

/// A matrix of each of this rank's experts; `up`: the first one, of gate and up.
ExpertLinear declare_experts(param::ParamStore& params, const std::string& name,
                             const BlockConfig& config, bool up) {
  const Dim F = config.experts.width;
  const Hyperslab part = config.group.shard({F}, 0);
  std::vector<std::vector<LinearOutput>> experts;
  const Dim first = config.expert_group.first(config.experts.count);
  for (Dim e = first; e < first + config.expert_group.here(config.experts.count); ++e) {
    const std::string expert = name + "." + std::to_string(e);
    std::vector<LinearOutput>& outputs = experts.emplace_back();
    if (up && ops::is_gated(config.activation)) outputs.push_back({expert + ".gate", F, part});
    outputs.push_back(up ? LinearOutput{expert + ".up", F, part}
                         : LinearOutput{expert + ".down", config.width});
  }
  const LinearOptions options = {.input_width = up ? config.width : F,
                                 .bias = false,
                                 .init = up ? config.init : config.residual_init,
                                 .parallel = up ? Parallel::column : Parallel::row,
                                 .adapter = config.adapter,
                                 .expert = config.expert_group.placement()};
  return {params, config.group, experts, options};
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

/// The experts of all tokens, their weights, and the ways of rows.
void Experts::choose(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const {
  const ExpertExchange& exchange = config_.expert_group.exchange();
  ops::matmul(ctx, x, ops::Trans::no, router_.value(), ops::Trans::yes, Accumulate::no,
              slot.logits);
  ops::route(ctx, rule_, slot.logits, bias_ ? bias_.value() : CView(), slot.chosen, slot.weights);
  exchange.sort(ctx, slot.chosen, slot.weights, slot.way, slot.memory.room);
  exchange.weights_to_experts(ctx, slot.way, slot.memory.room, slot.weights,
                              rows_here(ctx, slot).weights);
  if (slot.statistics && pass.batch.trains()) count_losses(ctx, pass, slot);
}

/// The part of a slot that has a row of some token.
Experts::Rows Experts::rows_here(const Context& ctx, const Slot& slot) const {
  return slot.here.first(config_.expert_group.exchange().rows_here(
      ctx, slot.way, slot.chosen.numel(), slot.here.values.shape()[0]));
}

ops::RouterLosses Experts::losses(const Slot& slot) const {
  const Dim group = slot.logits.rows() / std::max<Dim>(1, slot.statistics.rows());
  const Dim tokens = group / config_.experts.balance_samples;
  return config_.experts.losses(config_.context_group.all_tokens(tokens));
}

/// The router's terms of the loss, of whole samples. One rank of those that share a sample adds
/// them up.
void Experts::count_losses(Context& ctx, const ForwardPass& pass, const Slot& slot) const {
  ops::router_statistics(ctx, rule_, slot.logits, slot.chosen, slot.statistics);
  config_.context_group.sum(ctx, slot.statistics);
  if (pass.repeated || !config_.group.is_first() || config_.context_group.rank() > 0) return;
  ops::add_router_statistics(ctx, rule_, losses(slot), slot.statistics, pass.batch.sums,
                             pass.batch.loads.slice(index_, 1).reshaped({rule_.count}));
}

void Experts::forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& values,
                      View y) const {
  const auto& slot = slot_as<Slot>(values);
  const Scope scope(ctx.recorder(), kFfnComponent);
  const TensorGroup& group = config_.group;
  const ExpertExchange& exchange = config_.expert_group.exchange();
  const ExpertExchange::Room& room = slot.memory.room;
  const CView all = group.gather(ctx, x, pass.scratch.gathered).as_matrix();
  const ExpertExchange::Transfer tokens = exchange.start_to_experts(ctx, all, room.tokens);
  choose(ctx, all, pass, slot);
  const Rows here = rows_here(ctx, slot);
  const ops::GatheredRows rows = exchange.to_experts(ctx, slot.way, room, tokens, here.values);
  up_.forward(ctx, rows, here.of_up(slot.way), here.pre);
  ops::weighted_activation_forward(ctx, config_.activation, {here.pre, here.weights, slot.way.used},
                                   here.activated);
  down_.forward(ctx, here.activated, here.of_down(slot.way), here.values);
  const View term = group.term(y, pass.scratch.partial);
  const ExpertExchange::Transfer sums =
      exchange.start_to_tokens(ctx, slot.way, room, here.values, term.as_matrix());
  // Beside the sums; terms of a tensor group are where the shared experts' will be.
  const bool beside = shared_ && group.size() == 1;
  if (beside) shared_->forward(ctx, x, pass, slot.shared, slot.memory.shared_out);
  exchange.to_tokens(ctx, room, sums, term.as_matrix());
  group.sum(ctx, term, y);
  if (!shared_) return;
  if (!beside) shared_->forward(ctx, x, pass, slot.shared, slot.memory.shared_out);
  ops::add(ctx, y, slot.memory.shared_out, y);
}

/// d_activated, from there d_pre, in place, and the gradients of rows' weights.
void Experts::backward_rows(Context& ctx, const Arrivals& from, const BackwardPass& pass,
                            const Slot& slot, const Rows& here) const {
  if (config_.recompute == Recompute::selective) {
    ops::weighted_activation_forward(ctx, config_.activation,
                                     {here.pre, here.weights, slot.way.used}, here.activated);
  }
  const ExpertRows rows = here.of_down(slot.way);
  const ops::GatheredRows dy = config_.expert_group.exchange().to_experts(
      ctx, slot.way, slot.memory.room, from.gradients, here.values);
  down_.backward_input(ctx, dy, rows, here.d_activated);
  if (pass.part == BackwardPart::both) {
    down_.backward_weight(ctx, dy, here.activated, rows, pass.accumulate);
  }
  ops::weighted_activation_backward(ctx, config_.activation,
                                    {here.pre, here.weights, slot.way.used}, here.d_activated,
                                    here.pre, here.d_weights);
}

void Experts::backward_router(Context& ctx, const BackwardPass& pass, const Slot& slot) const {
  ops::RouterGradient gradient = {slot.memory.d_weights, {}};
  if (slot.statistics && config_.group.is_first()) {
    gradient.losses = losses(slot);
    gradient.statistics = slot.statistics;
    gradient.state = pass.batch.state;
  }
  ops::route_backward(ctx, rule_, slot.logits, slot.chosen, gradient, slot.memory.d_wide_logits);
  ops::cast(ctx, slot.memory.d_wide_logits, slot.dlogits);
}

/// Gradients of the first matrices and the router. all: x of all tensor ranks.
void Experts::backward_up(Context& ctx, CView all, const Arrivals& from, const BackwardPass& pass,
                          const Slot& slot, const Rows& here) const {
  const ops::GatheredRows rows = config_.expert_group.exchange().to_experts(
      ctx, slot.way, slot.memory.room, from.inputs, here.values);
  up_.backward_weight(ctx, here.pre, rows, here.of_up(slot.way), pass.accumulate);
  if (const View gradient = router_.gradient()) {
    ops::linear_backward_weight(ctx, slot.dlogits, all, pass.accumulate, gradient, {});
  }
}

/// The inputs' tokens travel beside the gradients' products, and the sums of dx beside gradients of
/// weights.
void Experts::backward_input(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                             const Slot& slot, View dx) const {
  const TensorGroup& group = config_.group;
  const ExpertExchange& exchange = config_.expert_group.exchange();
  const ExpertExchange::Room& room = slot.memory.room;
  const View gathered = pass.scratch.gathered;
  const Rows here = rows_here(ctx, slot);
  if (pass.part == BackwardPart::input) ops::cast(ctx, dy, slot.dy);
  Arrivals from;
  from.gradients =
      exchange.start_to_experts(ctx, group.gather(ctx, dy, gathered).as_matrix(), room.tokens);
  CView all;
  const auto start_inputs = [&] {
    all = group.gather(ctx, x, gathered).as_matrix();
    from.inputs = exchange.start_to_experts(ctx, all, room.inputs);
  };
  const bool has_inputs = pass.part == BackwardPart::both;
  const bool early = has_inputs && !group.cuts_rows();  // `gathered` holds one of them
  if (early) start_inputs();
  backward_rows(ctx, from, pass, slot, here);
  const ExpertExchange::Transfer d_weights =
      exchange.start_weights_to_tokens(ctx, slot.way, room, here.d_weights, slot.memory.d_weights);
  if (has_inputs && !early) start_inputs();
  const View term = dx ? group.term(dx, pass.scratch.partial) : View();
  ExpertExchange::Transfer sums;
  if (dx) {
    up_.backward_input(ctx, here.pre, here.of_up(slot.way), here.values);
    sums = exchange.start_to_tokens(ctx, slot.way, room, here.values, term.as_matrix());
  }
  exchange.wait(ctx, d_weights);
  backward_router(ctx, pass, slot);
  if (has_inputs) backward_up(ctx, all, from, pass, slot, here);
  if (!dx) return;
  exchange.to_tokens(ctx, room, sums, term.as_matrix());
  ops::linear_backward_input(ctx, slot.dlogits, router_.value(), Accumulate::yes, term.as_matrix());
  group.sum(ctx, term, dx);
}

void Experts::backward_weight(Context& ctx, CView x, const BackwardPass& pass,
                              const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const ExpertExchange& exchange = config_.expert_group.exchange();
  const ExpertExchange::Room& room = slot.memory.room;
  const View gathered = pass.scratch.gathered;
  const Rows here = rows_here(ctx, slot);
  Arrivals from;
  from.gradients =
      exchange.start_to_experts(ctx, group.gather(ctx, slot.dy, gathered).as_matrix(), room.tokens);
  down_.backward_weight(ctx, exchange.to_experts(ctx, slot.way, room, from.gradients, here.values),
                        here.activated, here.of_down(slot.way), pass.accumulate);
  const CView all = group.gather(ctx, x, gathered).as_matrix();
  from.inputs = exchange.start_to_experts(ctx, all, room.inputs);
  backward_up(ctx, all, from, pass, slot, here);
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
  shared_->backward(ctx, dy, x, pass, slot.shared, dx ? slot.memory.shared_out : View());
  if (dx) ops::add(ctx, dx, slot.memory.shared_out, dx);
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
