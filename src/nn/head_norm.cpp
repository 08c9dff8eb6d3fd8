// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/head_norm.hpp"

#include "hyperslab/nn/component.hpp"

namespace hyperslab::nn {

HeadNorm::HeadNorm(param::ParamStore& params, const TensorGroup& group, const std::string& name,
                   Dim head_width, float eps)
    : eps_(eps) {
  const auto declare = [&](const char* part) {
    param::ParamSpec spec = {name + part, {head_width}, param::Role::norm, param::Init::ones};
    spec.placement.tensor = group.placement(layout::partial());
    return params.declare(spec);
  };
  query_ = declare(".query_norm.weight");
  key_ = declare(".key_norm.weight");
}

HeadNorm::Slot HeadNorm::plan(Arena& activations, const Shape& tokens, const ops::HeadLayout& heads,
                              DType compute, DType statistics, const std::string& label) const {
  const Dim count = heads.heads + heads.kv_heads;
  return {
      activations.take(compute, {tokens[0], tokens[1], count * heads.head_width}, label + ".heads"),
      activations.take(statistics, {tokens[0], tokens[1], count}, label + ".rstd")};
}

ops::HeadNormWeights HeadNorm::weights() const { return {query_.value(), key_.value(), eps_}; }

void HeadNorm::forward(Context& ctx, const ops::HeadLayout& heads, View qkv,
                       const Slot& slot) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  ops::head_norm_forward(ctx, heads, weights(), qkv, slot);
}

void HeadNorm::backward(Context& ctx, const ops::HeadLayout& heads, const Slot& slot,
                        Accumulate accumulate, View d_qkv) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  ops::head_norm_backward(ctx, heads, weights(), slot, d_qkv,
                          {query_.gradient(), key_.gradient(), accumulate});
}

}  // namespace hyperslab::nn
