// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/query_key_norm.hpp"

#include "hyperslab/core/error.hpp"

namespace hyperslab::nn {

QueryKeyNorm::QueryKeyNorm(QkNorm kind, param::ParamStore& params, const TensorGroup& group,
                           const std::string& name, const ops::HeadLayout& heads, float eps) {
  if (kind == QkNorm::head) norm_ = HeadNorm(params, group, name, heads.head_width, eps);
  if (kind != QkNorm::width) return;
  require(group.is_alone(), "a norm of the width of queries takes a tensor group of one rank");
  norm_ = WidthNorm(params, name, heads, eps);
}

QueryKeyNorm::Slot QueryKeyNorm::Slot::for_tokens(const TokenCount& count) const {
  return {{}, width.for_tokens(count)};
}

QueryKeyNorm::Slot QueryKeyNorm::plan(Arena& activations, const Shape& tokens,
                                      const ops::HeadLayout& heads, DType compute, DType statistics,
                                      const std::string& label) const {
  Slot slot;
  if (const auto* of_heads = std::get_if<HeadNorm>(&norm_)) {
    slot.head = of_heads->plan(activations, tokens, heads, compute, statistics, label);
  } else if (const auto* of_width = std::get_if<WidthNorm>(&norm_)) {
    slot.width = of_width->plan(activations, tokens, compute, statistics, label);
  }
  return slot;
}

void QueryKeyNorm::forward(Context& ctx, const ops::HeadLayout& heads, View qkv, const Slot& slot,
                           View scratch) const {
  if (const auto* of_heads = std::get_if<HeadNorm>(&norm_)) {
    of_heads->forward(ctx, heads, qkv, slot.head);
  } else if (const auto* of_width = std::get_if<WidthNorm>(&norm_)) {
    of_width->forward(ctx, qkv, slot.width, scratch);
  }
}

void QueryKeyNorm::backward(Context& ctx, const ops::HeadLayout& heads, const Slot& slot,
                            Accumulate accumulate, View d_qkv, View scratch) const {
  if (const auto* of_heads = std::get_if<HeadNorm>(&norm_)) {
    of_heads->backward(ctx, heads, slot.head, accumulate, d_qkv);
  } else if (const auto* of_width = std::get_if<WidthNorm>(&norm_)) {
    of_width->backward(ctx, slot.width, accumulate, d_qkv, scratch);
  }
}

}  // namespace hyperslab::nn
