// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/class_head.hpp"

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::nn {

ClassHead::ClassHead(param::ParamStore& params, const ClassHeadConfig& config)
    : config_(config),
      norm_(params, config.group.of_whole_rows(), "final_norm",
            {config.norm, config.width, config.norm_eps, config.bias}) {
  param::ParamSpec weight = {"head.weight",
                             {config.classes, config.width},
                             param::Role::head,
                             param::Init::normal,
                             config.init.std_of(config.width, config.classes)};
  param::ParamSpec bias = {"head.bias", {config.classes}, param::Role::bias, param::Init::zeros};
  for (param::ParamSpec* const spec : {&weight, &bias}) {
    spec->stored_rows = config.columns;
    spec->placement.tensor = config.group.placement(layout::replicate());
  }
  weight_ = params.declare(weight);
  bias_ = params.declare(bias);
}

ClassHead::Memory ClassHead::plan(Arena& scratch, const ActivationSpec& spec, bool training) const {
  Memory memory;
  memory.pooled = scratch.take(spec.statistics, {spec.B, config_.width}, "pooled");
  if (config_.logit_scale != 1) {
    memory.scaled = scratch.take(spec.compute, {spec.B, config_.width}, "scaled rows of the head");
  }
  memory.logits = scratch.take(spec.compute, {spec.B, config_.columns}, "logits");
  if (training) {
    memory.d_pooled = scratch.take(spec.compute, {spec.B, 1, config_.width}, "d_pooled");
  }
  if (!config_.group.is_alone()) {
    memory.discarded = scratch.take(spec.statistics, {ops::kSumCount}, "discarded sums");
  }
  return memory;
}

ClassHead::Slot ClassHead::plan_slot(Arena& activations, const ActivationSpec& spec) const {
  const Shape shape = {spec.B, 1, config_.width};
  Slot slot;
  slot.pooled = activations.take(spec.compute, shape, "head.pooled");
  slot.norm = norm_.plan(activations, {shape, spec.compute, spec.statistics, false}, "final_norm");
  return slot;
}

ops::PooledRows ClassHead::rows_of(CView stream, Dim B) const {
  const Dim here = stream.numel() / config_.width;
  return {B, config_.tokens, config_.group.cuts_rows() ? config_.group.rank() * here : 0,
          config_.class_token};
}

CView ClassHead::logits(Context& ctx, ResidualStream in, const Memory& memory, Slot& slot) const {
  const Dim B = memory.pooled.shape()[0];
  ops::pool_rows_forward(ctx, rows_of(in.residual, B), in.residual, in.delta, memory.pooled);
  if (config_.group.cuts_rows()) {
    config_.group.of_whole_rows().sum(ctx, memory.pooled, memory.pooled);
  }
  ops::cast(ctx, memory.pooled, slot.pooled.as_matrix());
  norm_.forward(ctx, slot.pooled, {}, slot.norm);
  CView y = slot.norm.y().as_matrix();
  if (memory.scaled) {
    ops::scale(ctx, config_.logit_scale, y, memory.scaled);
    y = memory.scaled;
  }
  ops::linear_forward(ctx, y, weight_.value(), bias_.value(), memory.logits);
  return y;
}

void ClassHead::loss(Context& ctx, ResidualStream in, const Labels& labels, const Head::Step& step,
                     const Memory& memory, Slot& slot) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  (void)logits(ctx, in, memory, slot);
  ops::class_cross_entropy(ctx, {memory.logits, config_.classes, labels.labels, labels.weights}, 0,
                           step.state, ops::WithGradient::no, sums(step, memory));
}

void ClassHead::loss_and_gradient(Context& ctx, ResidualStream in, const Labels& labels,
                                  const Head::Step& step, const Memory& memory, Slot& slot, View dx,
                                  Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), kHeadComponent);
  const CView y = logits(ctx, in, memory, slot);
  ops::class_cross_entropy(ctx, {memory.logits, config_.classes, labels.labels, labels.weights},
                           config_.label_smoothing, step.state, ops::WithGradient::yes,
                           sums(step, memory));
  const Scope backward(ctx.recorder(), Phase::backward);
  const CView d_logits = memory.logits;
  ops::linear_backward_input(ctx, d_logits, weight_.value(), Accumulate::no,
                             memory.d_pooled.as_matrix());
  if (memory.scaled) ops::scale(ctx, config_.logit_scale, memory.d_pooled, memory.d_pooled);
  const View d_weight = weight_.gradient();
  const View d_bias = bias_.gradient();
  if (d_weight || d_bias) {
    ops::linear_backward_weight(ctx, d_logits, y, accumulate, d_weight, d_bias);
  }
  norm_.backward(ctx, slot.norm, memory.d_pooled, Accumulate::no, memory.d_pooled, accumulate);
  ops::pool_rows_backward(ctx, rows_of(dx, memory.d_pooled.shape()[0]), memory.d_pooled.as_matrix(),
                          dx);
}

}  // namespace hyperslab::nn
