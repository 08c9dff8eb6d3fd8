// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/block.hpp"

namespace hyperslab::nn {

Mlp::Mlp(ParamTable& params, const std::string& name, const BlockConfig& config) : config_(config) {
  std::vector<Linear::Output> up = {{name + ".up", config.ffn_width}};
  if (ops::is_gated(config.activation)) up.insert(up.begin(), {name + ".gate", config.ffn_width});
  up_ = Linear(params, up, config.width, config.bias, config.init_std);
  down_ = Linear(params, {{name + ".down", config.width}}, config.ffn_width, config.bias,
                 config.residual_init_std);
}

Mlp::Slot Mlp::plan(Arena& activations, Dim B, Dim T, DType compute,
                    const std::string& label) const {
  const Dim F = config_.ffn_width;
  const Dim pre_width = ops::is_gated(config_.activation) ? 2 * F : F;
  return {activations.take(compute, {B, T, pre_width}, label + ".pre"),
          activations.take(compute, {B, T, F}, label + ".activated")};
}

void Mlp::forward(Context& ctx, CView x, const Slot& slot, View y) const {
  const Scope scope(ctx.recorder(), Component::ffn);
  if (ops::is_gated(config_.activation)) {
    up_.forward(ctx, x, slot.pre);
    ops::gated_forward(ctx, config_.activation, slot.pre, slot.activated);
  } else {
    up_.forward_activated(ctx, x, config_.activation, slot.pre, slot.activated);
  }
  down_.forward(ctx, slot.activated, y);
}

void Mlp::backward(Context& ctx, CView dy, CView x, const Slot& slot, const Scratch& scratch,
                   View dx, Accumulate accumulate) const {
  const Scope scope(ctx.recorder(), Component::ffn);
  // The activation's input is not needed again: its gradient takes its place.
  const View d_pre = slot.pre;
  if (ops::is_gated(config_.activation)) {
    down_.backward_input(ctx, dy, scratch.d_activated);
    ops::gated_backward(ctx, config_.activation, slot.pre, scratch.d_activated, d_pre);
  } else {
    down_.backward_input_activated(ctx, dy, slot.pre, config_.activation, d_pre);
  }
  down_.backward_weight(ctx, dy, slot.activated, accumulate);
  up_.backward_input(ctx, d_pre, dx);
  up_.backward_weight(ctx, d_pre, x, accumulate);
}

}  // namespace hyperslab::nn
