// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/linear.hpp"

namespace hyperslab::nn {

Linear::Linear(ParamTable& params, const std::vector<Output>& outputs, Dim input_width, bool bias,
               float init_std) {
  std::vector<ParamSpec> weights;
  std::vector<ParamSpec> biases;
  for (const Output& output : outputs) {
    weights.push_back({output.name + ".weight",
                       {output.width, input_width},
                       ParamKind::matrix,
                       Init::normal,
                       init_std});
    biases.push_back({output.name + ".bias", {output.width}, ParamKind::bias, Init::zeros, 0});
  }
  weight_ = params.declare(weights);
  if (bias) bias_ = params.declare(biases);
}

void Linear::forward(Context& ctx, CView x, View y) const {
  ops::linear_forward(ctx, x, weight_.value(), bias_value(), y);
}

void Linear::forward_activated(Context& ctx, CView x, ops::Activation activation, View pre,
                               View y) const {
  ops::linear_activation_forward(ctx, x, weight_.value(), bias_value(), activation, pre, y);
}

void Linear::backward_input(Context& ctx, CView dy, View dx) const {
  ops::linear_backward_input(ctx, dy, weight_.value(), Accumulate::no, dx);
}

void Linear::backward_input_activated(Context& ctx, CView dy, CView pre, ops::Activation activation,
                                      View dpre) const {
  ops::linear_activation_backward_input(ctx, dy, weight_.value(), pre, activation, dpre);
}

void Linear::backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate) const {
  ops::linear_backward_weight(ctx, dy, x, accumulate, weight_.gradient(),
                              bias_ ? bias_.gradient() : View());
}

}  // namespace hyperslab::nn
