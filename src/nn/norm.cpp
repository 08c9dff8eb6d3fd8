// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/norm.hpp"

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

using ops::NormKind;

Norm::Norm(param::ParamStore& params, const TensorGroup& group, const std::string& name,
           const Options& options)
    : kind_(options.kind), eps_(options.eps) {
  if (kind_ == NormKind::none) return;
  param::ParamSpec weight = {
      name + ".weight", {options.width}, param::Role::norm, param::Init::ones};
  param::ParamSpec shift = {name + ".bias", {options.width}, param::Role::norm, param::Init::zeros};
  // A rank that sees only its rows computes only their share of the gradient.
  weight.placement.tensor =
      group.placement(group.cuts_rows() ? layout::partial() : layout::replicate());
  shift.placement = weight.placement;
  weight_ = params.declare(weight);
  if (kind_ == NormKind::layernorm && options.bias) bias_ = params.declare(shift);
}

Dim Norm::parameters(const Options& options) {
  switch (options.kind) {
    case NormKind::none: return 0;
    case NormKind::rmsnorm: return options.width;
    case NormKind::layernorm: return options.bias ? 2 * options.width : options.width;
  }
  return 0;
}

Norm::Slot Norm::plan(Arena& activations, const Plan& plan, const std::string& label) const {
  Slot slot;
  const Shape rows = {plan.shape[0], plan.shape[1]};
  if (plan.adds) slot.sum = activations.take(plan.compute, plan.shape, label + ".sum");
  if (kind_ == NormKind::none) return slot;
  slot.out = plan.out ? plan.out : activations.take(plan.compute, plan.shape, label + ".output");
  if (kind_ == NormKind::layernorm) {
    slot.mean = activations.take(plan.statistics, rows, label + ".mean");
  }
  slot.rstd = activations.take(plan.statistics, rows, label + ".rstd");
  return slot;
}

Norm::Slot Norm::Slot::for_tokens(const TokenCount& count) const {
  return {.sum = nn::for_tokens(sum, count),
          .out = nn::for_tokens(out, count),
          .mean = nn::for_tokens(mean, count),
          .rstd = nn::for_tokens(rstd, count),
          .x = {}};
}

void Norm::normalize(Context& ctx, CView residual, CView delta, View sum, const Slot& slot) const {
  ops::add_norm_forward(ctx, kind_,
                        {.residual = residual,
                         .delta = delta,
                         .weight = weight_.value(),
                         .bias = bias_ ? bias_.value() : CView(),
                         .eps = eps_},
                        {.sum = sum, .y = slot.out, .mean = slot.mean, .rstd = slot.rstd});
}

void Norm::forward(Context& ctx, CView residual, CView delta, Slot& slot) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  slot.x = delta ? CView(slot.sum) : residual;
  if (kind_ == NormKind::none) {
    if (delta) ops::add(ctx, residual, delta, slot.sum);
    return;
  }
  normalize(ctx, residual, delta, delta ? slot.sum : View(), slot);
}

std::optional<ops::BlockNorm> Norm::operands() const {
  if (kind_ == NormKind::none) return std::nullopt;
  return ops::BlockNorm{.kind = kind_,
                        .weight = weight_.value(),
                        .bias = bias_ ? bias_.value() : CView(),
                        .eps = eps_};
}

void Norm::recompute(Context& ctx, const Slot& slot) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  if (kind_ != NormKind::none) normalize(ctx, slot.x, {}, {}, slot);
}

void Norm::backward(Context& ctx, const Slot& slot, CView dy, Accumulate through, View dsum,
                    Accumulate accumulate, const StreamBiases& biases) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  if (kind_ == NormKind::none) {
    if (through == Accumulate::yes)
      ops::add(ctx, dsum, dy, dsum);
    else if (dsum.raw() != dy.raw())
      ops::cast(ctx, dy, dsum);
    return;
  }
  ops::norm_backward(
      ctx, kind_, dy,
      {.sum = slot.x, .weight = weight_.value(), .mean = slot.mean, .rstd = slot.rstd},
      {.dsum = dsum,
       .accumulate_input = through,
       .dweight = weight_.gradient(),
       .dbias = bias_ ? bias_.gradient() : View(),
       .accumulate_weight = accumulate,
       .arriving_sums = biases.after,
       .leaving_sums = biases.before});
}

}  // namespace hyperslab::nn
