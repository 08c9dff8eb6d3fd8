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
                              slot.here.weights.slice(0, rows_here(ctx, slot)));
  if (slot.statistics && pass.batch.trains()) count_losses(ctx, pass, slot);
}

/// The rows of this rank's experts, or at least as many.
Dim Experts::rows_here(const Context& ctx, const Slot& slot) const {
  return config_.expert_group.exchange().rows_here(ctx, slot.way, slot.chosen.numel(),
                                                   slot.here.weights.numel());
}

/// Calls work(part) for the parts of the rows here, at least one. On a GPU, where the host does not
/// know how many there are, later ones may be without rows.
template <class Work>
void Experts::for_parts(const Context& ctx, const Slot& slot, Work&& work) const {
  const Dim all = rows_here(ctx, slot);
  const Dim at_once = slot.way.at_once;
  const Kept& more = slot.memory.more.pre ? slot.memory.more : slot.here.kept;
  for (Dim first = 0; first == 0 || first < all; first += at_once) {
    const Kept& kept = first == 0 ? slot.here.kept : more;
    work(Part{slot.way.part(first / at_once),
              slot.here.part(first, std::min(at_once, all - first), kept), at_once});
  }
}

/// The rows of a part, of tokens on their way.
ops::GatheredRows Experts::rows_of(Context& ctx, const Slot& slot, const Part& part,
                                   ExpertExchange::Transfer& tokens) const {
  return config_.expert_group.exchange().to_experts(ctx, slot.way, slot.memory.room, tokens,
                                                    part.rows, part.here.values);
}

/// The inputs of the experts' second product.
void Experts::activate(Context& ctx, const Slot& slot, const Part& part,
                       ExpertExchange::Transfer& inputs) const {
  up_.forward(ctx, rows_of(ctx, slot, part, inputs), part.of_up(), part.here.kept.pre);
  ops::weighted_activation_forward(ctx, config_.activation, part.weighted(),
                                   part.here.kept.activated);
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
  if (pass.repeated || !config_.group.is_first()) return;
  if (slot.way.part_first) {
    ops::add_rows_beyond(ctx, slot.way.first_rows, slot.way.at_once, pass.batch.sums);
  }
  if (config_.context_group.rank() > 0) return;
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
  ExpertExchange::Transfer tokens = exchange.start_to_experts(ctx, all, room.tokens);
  choose(ctx, all, pass, slot);
  const View term = group.term(y, pass.scratch.partial);
  for_parts(ctx, slot, [&](const Part& part) {
    activate(ctx, slot, part, tokens);
    down_.forward(ctx, part.here.kept.activated, part.of_down(), part.here.values);
    exchange.add_rows(ctx, slot.way, room, part.rows, part.here.values, term.as_matrix());
  });
  const ExpertExchange::Transfer sums = exchange.start_to_tokens(ctx, room, term.as_matrix());
  // Beside the sums; terms of a tensor group are where the shared experts' will be.
  const bool beside = shared_ && group.is_alone();
  if (beside) shared_->forward(ctx, x, pass, slot.shared, slot.memory.shared_out);
  exchange.to_tokens(ctx, room, sums, term.as_matrix());
  group.sum(ctx, term, y);
  if (!shared_) return;
  if (!beside) shared_->forward(ctx, x, pass, slot.shared, slot.memory.shared_out);
  ops::add(ctx, y, slot.memory.shared_out, y);
}

/// From gradients of outputs to d_activated, and from there in place to d_pre and the gradients of
/// rows' weights. Memory kept `activated` and d_pre of the first part alone: of others they are
/// computed again, as often as they are needed.
void Experts::backward_activated(Context& ctx, const BackwardPass& pass, const Slot& slot,
                                 const Part& part, Arrivals& from) const {
  if (!part.rows.is_first()) {
    activate(ctx, slot, part, from.inputs);
    // An adapter's gradient reads what its forward pass left.
    if (down_.adapter_ranks() > 0) {
      down_.forward(ctx, part.here.kept.activated, part.of_down(), part.here.values);
    }
  } else if (config_.recompute == Recompute::selective) {
    ops::weighted_activation_forward(ctx, config_.activation, part.weighted(),
                                     part.here.kept.activated);
  }
  ops::GatheredRows dy = rows_of(ctx, slot, part, from.gradients);
  // No product of a CPU gathers rows, and two need them.
  if (ctx.planned() == Device::cpu) dy = ops::rows_in_order(ctx, dy);
  down_.backward_input(ctx, dy, part.of_down(), part.here.d_activated);
  if (part.rows.is_first() && pass.part == BackwardPart::both) {
    down_.backward_weight(ctx, dy, part.here.kept.activated, part.of_down(), pass.accumulate);
  }
  ops::weighted_activation_backward(ctx, config_.activation, part.weighted(), part.here.d_activated,
                                    part.here.kept.pre, part.here.d_weights);
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

void Experts::router_gradient(Context& ctx, CView x, const BackwardPass& pass,
                              const Slot& slot) const {
  const View gradient = router_.gradient();
  if (!gradient) return;
  ops::linear_backward_weight(ctx, slot.dlogits, x, pass.accumulate, gradient, {});
}

/// Begins to bring x: (N, C) to the experts, once, if it is there.
void Experts::start_inputs(Context& ctx, CView x, const Scratch& scratch, const Slot& slot,
                           Arrivals& from) const {
  if (!x || from.all) return;
  from.all = config_.group.gather(ctx, x, scratch.gathered).as_matrix();
  from.inputs =
      config_.expert_group.exchange().start_to_experts(ctx, from.all, slot.memory.room.inputs);
}

/// Begins to bring gradients of outputs to the experts, and x beside them unless rows of both would
/// lie in the same memory.
Experts::Arrivals Experts::start_backward(Context& ctx, CView dy, CView x, const Scratch& scratch,
                                          const Slot& slot) const {
  const TensorGroup& group = config_.group;
  const ExpertExchange& exchange = config_.expert_group.exchange();
  const View gathered = scratch.gathered;
  Arrivals from;
  from.gradients = exchange.start_to_experts(ctx, group.gather(ctx, dy, gathered).as_matrix(),
                                             slot.memory.room.tokens);
  if (group.cuts_rows()) {
    if (from.gradients.values.raw() == gathered.raw()) return from;
    exchange.wait(ctx, from.gradients);
    from.gradients.ticket = 0;
  }
  start_inputs(ctx, x, scratch, slot, from);
  return from;
}

/// Gradients of inputs and of the router, then those of weights beside the sums of the former.
void Experts::backward_input(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                             const Slot& slot, View dx) const {
  const TensorGroup& group = config_.group;
  const ExpertExchange& exchange = config_.expert_group.exchange();
  const ExpertExchange::Room& room = slot.memory.room;
  const bool both = pass.part == BackwardPart::both;
  if (!both) ops::cast(ctx, dy, slot.dy);
  const bool wants_inputs = both || slot.way.part_first;
  Arrivals from = start_backward(ctx, dy, wants_inputs ? x : CView(), pass.scratch, slot);
  const View term = dx ? group.term(dx, pass.scratch.partial).as_matrix() : View();
  for_parts(ctx, slot, [&](const Part& part) {
    backward_activated(ctx, pass, slot, part, from);
    if (!dx) return;
    up_.backward_input(ctx, part.here.kept.pre, part.of_up(), part.here.values);
    exchange.add_rows(ctx, slot.way, room, part.rows, part.here.values, term);
  });
  if (!both) exchange.wait(ctx, from.inputs);  // no later part does it
  const ExpertExchange::Transfer d_weights = exchange.start_weights_to_tokens(
      ctx, slot.way, room, slot.here.d_weights.slice(0, rows_here(ctx, slot)),
      slot.memory.d_weights);
  ExpertExchange::Transfer sums;
  if (dx) sums = exchange.start_to_tokens(ctx, room, term);
  exchange.wait(ctx, d_weights);
  backward_router(ctx, pass, slot);
  if (both) weight_gradients(ctx, x, pass, slot, from);
  if (!dx) return;
  exchange.to_tokens(ctx, room, sums, term);
  ops::linear_backward_input(ctx, slot.dlogits, router_.value(), Accumulate::yes, term);
  group.sum(ctx, group.term(dx, pass.scratch.partial), dx);
}

/// Gradients of the matrices whose inputs are there: of the second one unless backward_activated()
/// has computed it, of the first one and the router.
void Experts::weight_gradients(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot,
                               Arrivals& from) const {
  for_parts(ctx, slot, [&](const Part& part) {
    const Accumulate accumulate = part.rows.is_first() ? pass.accumulate : Accumulate::yes;
    if (!part.rows.is_first()) backward_activated(ctx, pass, slot, part, from);
    if (!part.rows.is_first() || pass.part == BackwardPart::weight) {
      down_.backward_weight(ctx, rows_of(ctx, slot, part, from.gradients), part.here.kept.activated,
                            part.of_down(), accumulate);
    }
    start_inputs(ctx, x, pass.scratch, slot, from);
    up_.backward_weight(ctx, part.here.kept.pre, rows_of(ctx, slot, part, from.inputs),
                        part.of_up(), accumulate);
  });
  router_gradient(ctx, from.all, pass, slot);
}

void Experts::backward_weight(Context& ctx, CView x, const BackwardPass& pass,
                              const Slot& slot) const {
  Arrivals from = start_backward(ctx, slot.dy, x, pass.scratch, slot);
  weight_gradients(ctx, x, pass, slot, from);
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
