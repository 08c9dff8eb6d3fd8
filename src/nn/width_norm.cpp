// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/width_norm.hpp"

#include "hyperslab/nn/component.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/norm.hpp"

namespace hyperslab::nn {
namespace {

/// The first elements of `scratch`, as queries or keys.
View cut(View scratch, CView like) {
  return {scratch.raw(), like.dtype(), scratch.device(), like.shape()};
}

}  // namespace

WidthNorm::Slot WidthNorm::Slot::for_tokens(const TokenCount& count) const {
  return {nn::for_tokens(queries, count), nn::for_tokens(keys, count),
          nn::for_tokens(query_rstd, count), nn::for_tokens(key_rstd, count)};
}

WidthNorm::WidthNorm(param::ParamStore& params, const std::string& name,
                     const ops::HeadLayout& heads, float eps)
    : eps_(eps) {
  const Dim query_width = heads.heads * heads.head_width;
  const Dim key_width = heads.kv_heads * heads.head_width;
  const auto declare = [&](const char* part, Dim width) {
    return params.declare({name + part, {width}, param::Role::norm, param::Init::ones});
  };
  queries_ = {declare(".query_norm.weight", query_width), 0, query_width};
  keys_ = {declare(".key_norm.weight", key_width), query_width, key_width};
}

WidthNorm::Slot WidthNorm::plan(Arena& activations, const Shape& tokens, DType compute,
                                DType statistics, const std::string& label) const {
  const auto take = [&](const Part& part, const char* name) {
    return activations.take(compute, {tokens[0], tokens[1], part.width}, label + name);
  };
  Slot slot;
  slot.queries = take(queries_, ".queries");
  slot.keys = take(keys_, ".keys");
  slot.query_rstd = activations.take(statistics, tokens, label + ".query_rstd");
  slot.key_rstd = activations.take(statistics, tokens, label + ".key_rstd");
  return slot;
}

void WidthNorm::forward(Context& ctx, const Part& part, View qkv, View kept, View rstd,
                        View scratch) const {
  const View normalized = cut(scratch, kept);
  ops::take_columns(ctx, qkv, part.first, kept);
  ops::add_norm_forward(ctx, ops::NormKind::rmsnorm,
                        {.residual = kept, .weight = part.weight.value(), .eps = eps_},
                        {.y = normalized, .rstd = rstd});
  ops::put_columns(ctx, normalized, part.first, qkv);
}

void WidthNorm::forward(Context& ctx, View qkv, const Slot& slot, View scratch) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  forward(ctx, queries_, qkv, slot.queries, slot.query_rstd, scratch);
  forward(ctx, keys_, qkv, slot.keys, slot.key_rstd, scratch);
}

void WidthNorm::backward(Context& ctx, const Part& part, View d_qkv, CView kept, CView rstd,
                         ops::Accumulate accumulate, View scratch) const {
  const View d = cut(scratch, kept);
  ops::take_columns(ctx, d_qkv, part.first, d);
  ops::norm_backward(ctx, ops::NormKind::rmsnorm, d,
                     {.sum = kept, .weight = part.weight.value(), .rstd = rstd},
                     {.dsum = d,
                      .accumulate_input = ops::Accumulate::no,
                      .dweight = part.weight.gradient(),
                      .accumulate_weight = accumulate});
  ops::put_columns(ctx, d, part.first, d_qkv);
}

void WidthNorm::backward(Context& ctx, const Slot& slot, ops::Accumulate accumulate, View d_qkv,
                         View scratch) const {
  const Scope scope(ctx.recorder(), kNormsComponent);
  backward(ctx, queries_, d_qkv, slot.queries, slot.query_rstd, accumulate, scratch);
  backward(ctx, keys_, d_qkv, slot.keys, slot.key_rstd, accumulate, scratch);
}

}  // namespace hyperslab::nn
