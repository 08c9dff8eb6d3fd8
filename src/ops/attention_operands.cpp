// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string>

#include "attention_checks.hpp"
#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

template <class V>
bool lies_at(const HeadsOf<V>& heads, const HeadsOf<V>& expected) {
  return heads.base.raw() == expected.base.raw() && heads.base.shape() == expected.base.shape() &&
         heads.first == expected.first && heads.heads == expected.heads &&
         heads.width == expected.width;
}

/// The heads of a packed buffer.
template <class V>
std::array<HeadsOf<V>, 3> packed_heads(const HeadLayout& layout, V qkv) {
  const auto& [H, H_kv, D] = layout;
  return {{{qkv, 0, H, D}, {qkv, H * D, H_kv, D}, {qkv, (H + H_kv) * D, H_kv, D}}};
}
template <class V>
bool is_packed(const HeadLayout& layout, const std::array<HeadsOf<V>, 3>& found) {
  const V qkv = found[0].base;
  return qkv.shape()[2] == layout.packed_width() &&
         std::ranges::equal(found, packed_heads(layout, qkv), lies_at<V>);
}
bool is_packed(const AttentionOperands& operands) {
  const auto& [q, k, v, first_query] = operands;
  return first_query == 0 && is_packed<CView>(operands.layout(), {q, k, v});
}

template <class V>
void require_heads_of(const Context& ctx, const HeadsOf<V>& heads, const HeadsOf<CView>& like,
                      const std::string& what) {
  require_dtype(ctx, heads.base, like.base.dtype(), what);
  const auto [B, T, row] = heads.base.template dims<3>(what);
  const bool agrees = B == like.base.shape()[0] && T == like.base.shape()[1] &&
                      heads.heads == like.heads && heads.width == like.width;
  if (!agrees || heads.first < 0 || heads.heads < 1 || heads.width < 1 ||
      heads.first + heads.heads * heads.width > row) {
    throw Error(ExitCode::internal, what + ": heads that agree and lie in the rows are expected");
  }
}

/// Checks operands and the mask.
void require_operands(const Context& ctx, const AttentionOperands& operands,
                      const AttentionScores& scores, const std::string& op) {
  const auto& [q, k, v, first_query] = operands;
  require_heads_of(ctx, q, q, op + " q");
  require_heads_of(ctx, k, HeadsOf<CView>{k.base, 0, k.heads, q.width}, op + " k");
  require_heads_of(ctx, v, HeadsOf<CView>{k.base, 0, k.heads, v.width}, op + " v");
  const Dim B = q.base.shape()[0];
  const Dim T = q.base.shape()[1];
  require_dtype(ctx, k.base, q.base.dtype(), op + " k");
  if (q.heads % k.heads != 0 || k.base.shape()[0] != B) {
    throw Error(ExitCode::internal, op + " k: samples of q, and heads that divide its heads");
  }
  require_mask(scores, op);
  if (scores.first_keys) {
    require_operand(ctx, scores.first_keys, {B, T}, DType::i32, op + " first_keys");
  }
  require_sinks(ctx, scores.sinks, {B, q.heads, T}, q.base.dtype(), op + " sinks");
}

void require_part(const Context& ctx, const AttentionOperands& operands, const AttentionPart& part,
                  const std::string& op) {
  const CView q = operands.q.base;
  const Dim B = q.shape()[0];
  const Dim T = q.shape()[1];
  const Dim H = operands.q.heads;
  require_operand(ctx, part.out, {B, T, H * operands.v.width}, q.dtype(), op + " out");
  require_operand(ctx, part.log_sum_exp, {B, H, T}, statistic_dtype(q.dtype()),
                  op + " log_sum_exp");
}

void refuse_gpu(const Context& ctx, const std::string& op) {
  if (ctx.planned() != Device::cuda && ctx.device() != Device::cuda) return;
  throw Error(ExitCode::usage, op +
                                   ": GPUs attend only from packed queries, keys and values of one "
                                   "width so far: set run.device to cpu");
}

/// The sum of min(p, most) over positions 1 to `last`.
double sum_to(Dim last, Dim most) {
  const auto within = static_cast<double>(std::clamp<Dim>(last, 0, most));
  const auto beyond = static_cast<double>(std::max<Dim>(0, last - most));
  return within * (within + 1) / 2 + beyond * static_cast<double>(most);
}

/// Pairs of a query and a key that the mask leaves, over all samples and heads; documents do not
/// count.
double seen_pairs(const AttentionOperands& operands, const AttentionMask& mask) {
  const Dim queries = operands.q.base.shape()[1];
  const Dim keys = operands.k.base.shape()[1];
  const Dim first = operands.first_query;
  const auto seen = [&](Dim from) { return sum_to(from + queries, keys) - sum_to(from, keys); };
  double pairs = static_cast<double>(queries) * static_cast<double>(keys);
  if (mask.kind == AttentionMask::Kind::causal) pairs = seen(first);
  if (mask.window > 0) pairs -= seen(first - mask.window);
  return pairs * static_cast<double>(operands.q.base.shape()[0] * operands.q.heads);
}

}  // namespace

AttentionOperands packed_operands(const HeadLayout& layout, CView qkv) {
  const auto [q, k, v] = packed_heads(layout, qkv);
  return {q, k, v};
}

void attention_operands_forward(Context& ctx, const AttentionOperands& operands,
                                const AttentionScores& scores, View out, View log_sum_exp) {
  constexpr const char* kName = "attention_operands_forward";
  require_operands(ctx, operands, scores, kName);
  require_part(ctx, operands, {out, log_sum_exp}, kName);
  const auto& [q, k, v, first_query] = operands;
  if (is_packed(operands)) {
    return attention_forward(ctx, operands.layout(), scores, q.base, out, log_sum_exp);
  }
  refuse_gpu(ctx, kName);
  const double flops =
      2 * static_cast<double>(k.width + v.width) * seen_pairs(operands, scores.mask);
  if (on_meta(ctx, kName, flops, {q.base, k.base, v.base, out, log_sum_exp},
              cpu::attention_operands_forward_workspace(ctx.threads(), {k.width, v.width},
                                                        k.base.shape()[1], q.base.dtype()))) {
    return;
  }
  dispatch<nullptr, cpu::attention_operands_forward>(ctx, operands, scores, out, log_sum_exp);
}

void attention_operands_backward(Context& ctx, const AttentionOperands& operands,
                                 const AttentionScores& scores, CView dout,
                                 const AttentionPart& saved,
                                 const AttentionOperandGradients& gradients) {
  constexpr const char* kName = "attention_operands_backward";
  require_operands(ctx, operands, scores, kName);
  require_part(ctx, operands, saved, kName);
  require_operand(ctx, dout, saved.out.shape(), saved.out.dtype(),
                  "attention_operands_backward dout");
  const auto& [q, k, v, first_query] = operands;
  const auto& [dq, dk, dv] = gradients;
  require_heads_of(ctx, dq, q, "attention_operands_backward dq");
  require_heads_of(ctx, dk, k, "attention_operands_backward dk");
  require_heads_of(ctx, dv, v, "attention_operands_backward dv");
  if (is_packed(operands) && is_packed<View>(operands.layout(), {dq, dk, dv})) {
    return attention_backward(ctx, operands.layout(), scores, dout,
                              {q.base, saved.out, saved.log_sum_exp}, {dq.base});
  }
  refuse_gpu(ctx, kName);
  const double flops =
      2 * static_cast<double>(3 * k.width + 2 * v.width) * seen_pairs(operands, scores.mask);
  if (on_meta(
          ctx, kName, flops,
          {dout, q.base, k.base, v.base, saved.out, saved.log_sum_exp, dq.base, dk.base, dv.base},
          cpu::attention_operands_backward_workspace(ctx.threads(), {k.width, v.width},
                                                     k.base.shape()[1], q.base.dtype()))) {
    return;
  }
  dispatch<nullptr, cpu::attention_operands_backward>(ctx, operands, scores, dout, saved,
                                                      gradients);
}

void merge_attention(Context& ctx, const AttentionPart& a, const AttentionPart& b, View out,
                     View log_sum_exp) {
  require_here(ctx, out, "merge_attention out");
  const auto [B, T, width] = out.dims<3>("merge_attention out");
  const Dim H = log_sum_exp.dims<3>("merge_attention log_sum_exp")[1];
  require(H > 0 && width % H == 0, "merge_attention log_sum_exp: heads that divide the outputs");
  const DType statistic = statistic_dtype(out.dtype());
  for (const AttentionPart& part : {a, b, AttentionPart{out, log_sum_exp}}) {
    require_operand(ctx, part.out, {B, T, width}, out.dtype(), "merge_attention out");
    require_operand(ctx, part.log_sum_exp, {B, H, T}, statistic, "merge_attention log_sum_exp");
  }
  if (on_meta(ctx, "merge_attention", 3.0 * static_cast<double>(out.numel()),
              {a.out, a.log_sum_exp, b.out, b.log_sum_exp, out, log_sum_exp})) {
    return;
  }
  dispatch<cuda::merge_attention, cpu::merge_attention>(ctx, a, b, out, log_sum_exp);
}

}  // namespace hyperslab::ops
