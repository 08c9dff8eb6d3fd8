// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/norm.hpp"

#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {

using ops::NormKind;

Norm::Norm(ParamTable& params, const std::string& name, NormKind kind, Dim width, float eps,
           bool bias)
    : kind_(kind), eps_(eps) {
  if (kind == NormKind::none) return;
  const ParamSpec weight = {name + ".weight", {width}, ParamKind::norm, Init::ones, 0};
  const ParamSpec shift = {name + ".bias", {width}, ParamKind::norm, Init::zeros, 0};
  weight_ = params.declare(std::span(&weight, 1));
  if (kind == NormKind::layernorm && bias) bias_ = params.declare(std::span(&shift, 1));
}

Norm::Slot Norm::plan(Arena& activations, const Shape& shape, DType compute, DType statistics,
                      bool adds, const std::string& label) const {
  Slot slot;
  const Shape rows = {shape[0], shape[1]};
  if (adds) slot.sum = activations.take(compute, shape, label + ".sum");
  if (kind_ == NormKind::none) return slot;
  slot.out = activations.take(compute, shape, label + ".output");
  if (kind_ == NormKind::layernorm) slot.mean = activations.take(statistics, rows, label + ".mean");
  slot.rstd = activations.take(statistics, rows, label + ".rstd");
  return slot;
}

void Norm::forward(Context& ctx, CView residual, CView delta, Slot& slot) const {
  const Scope scope(ctx.recorder(), Component::norms);
  slot.x = delta ? CView(slot.sum) : residual;
  if (kind_ == NormKind::none) {
    if (delta) ops::add(ctx, residual, delta, slot.sum);
    return;
  }
  ops::add_norm_forward(ctx, kind_, residual, delta, weight_.value(),
                        bias_ ? bias_.value() : CView(), eps_, delta ? slot.sum : View(), slot.out,
                        slot.mean, slot.rstd);
}

void Norm::backward(Context& ctx, const Slot& slot, CView dy, Accumulate through, View dsum,
                    Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), Component::norms);
  if (kind_ == NormKind::none) {
    if (through == Accumulate::yes)
      ops::add(ctx, dsum, dy, dsum);
    else if (dsum.raw() != dy.raw())
      ops::cast(ctx, dy, dsum);
    return;
  }
  ops::norm_backward(ctx, kind_, dy, slot.x, weight_.value(), slot.mean, slot.rstd, through, dsum,
                     accumulate, weight_.gradient(), bias_ ? bias_.gradient() : View());
}

}  // namespace hyperslab::nn
