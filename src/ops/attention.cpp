// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/attention.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <type_traits>

#include "attention_checks.hpp"
#include "backend.hpp"
#include "checks.hpp"
#include "cuda/attention/table.hpp"
#include "dropout_checks.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "kernel_choice.hpp"

namespace hyperslab::ops {
double AttentionScores::scale_of(const HeadLayout& layout) const {
  return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(layout.head_width));
}

double seen_share(const AttentionMask& mask, Dim T) {
  if (mask.kind == AttentionMask::Kind::none) return 1;
  if (mask.window == 0 || mask.window >= T) return 0.5;
  const double part = static_cast<double>(mask.window) / static_cast<double>(T);
  return part - 0.5 * part * part;
}

namespace {

/// FLOPs of one GEMM of queries and keys over a full square of T x T scores.
double square_flops(const HeadLayout& layout, Dim B, Dim T) {
  return 2.0 * static_cast<double>(B * layout.heads * layout.head_width) * static_cast<double>(T) *
         static_cast<double>(T);
}

/// The first key of every query, if there is one.
void require_first_keys(const Context& ctx, const AttentionScores& scores, Dim B, Dim T,
                        std::string_view op) {
  if (!scores.first_keys) return;
  const std::string what = std::string(op) + " first_keys";
  require_here(ctx, scores.first_keys, what);
  require_operand(ctx, scores.first_keys, {B, T}, DType::i32, what);
}

std::size_t reference_workspace(const Context& ctx, const HeadLayout& layout,
                                const AttentionScores& scores, Dim T, DType dtype,
                                const Dropout& dropout) {
  return workspace_for(
      ctx, cpu::attention_reference_workspace(ctx.threads(), T, dtype),
      cuda::attention_reference_workspace(layout, T, dtype, dropout.active(), scores.softcap > 0));
}

/// Cosines and sines of rotary positions: (T_max, D / 2) each.
void require_tables(const Context& ctx, CView cosines, CView sines, Dim T_max, Dim half) {
  require_here(ctx, cosines, "rope cosines");
  require_operand(ctx, cosines, {T_max, half}, statistic_dtype(cosines.dtype()), "rope cosines");
  require_operand(ctx, sines, {T_max, half}, cosines.dtype(), "rope sines");
}

/// "64 samples of 1024 tokens, 12 heads of 64, causal"
std::string text_of(const cuda::AttentionProblem& problem, Dim B) {
  const auto& [layout, scores, T, deterministic] = problem;
  std::string text = std::to_string(B) + " samples of " + std::to_string(T) + " tokens, " +
                     std::to_string(layout.heads) + " heads of " +
                     std::to_string(layout.head_width) + ", " +
                     (scores.mask.kind == AttentionMask::Kind::causal ? "causal" : "all keys");
  if (scores.mask.window > 0) text += ", window " + std::to_string(scores.mask.window);
  if (scores.first_keys) text += ", documents";
  if (scores.softcap > 0) text += ", capped scores";
  if (deterministic) text += ", deterministic";
  return text;
}

/// magnitude f(t frequency) in memory of the host.
Tensor angle_table(const View& like, std::span<const double> frequencies, double magnitude,
                   double (*f)(double)) {
  Tensor out(Device::cpu, like.dtype(), like.shape());
  const auto fill = [&](auto values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t position = i / frequencies.size();
      const double angle = static_cast<double>(position) * frequencies[i % frequencies.size()];
      values[i] = static_cast<std::remove_reference_t<decltype(values[i])>>(magnitude * f(angle));
    }
  };
  like.dtype() == DType::f64 ? fill(out.view().span<double>()) : fill(out.view().span<float>());
  return out;
}

}  // namespace

std::array<Dim, 2> require_packed(const Context& ctx, const HeadLayout& layout, CView qkv,
                                  std::string_view what) {
  require(layout.heads > 0 && layout.kv_heads > 0 && layout.head_width > 0 &&
              layout.heads % layout.kv_heads == 0,
          "attention layout: expected positive sizes and heads a multiple of kv_heads");
  require_here(ctx, qkv, what);
  const auto [B, T, width] = qkv.dims<3>(what);
  require_shape(qkv, {B, T, layout.packed_width()}, what);
  return {B, T};
}

void require_mask(const AttentionScores& scores, std::string_view op) {
  const auto& [mask, scale, softcap, first_keys, sinks] = scores;
  const auto fail = [&](const std::string& found) {
    throw Error(ExitCode::internal, std::string(op) + " mask: expected " + found);
  };
  if (mask.kind != AttentionMask::Kind::causal && mask.kind != AttentionMask::Kind::none) {
    fail("causal or none, found kind " + std::to_string(static_cast<int>(mask.kind)));
  }
  const bool causal = mask.kind == AttentionMask::Kind::causal;
  if (mask.window < 0 || (mask.window > 0 && !causal)) {
    fail("a window of at least 0 tokens, and 0 without a causal mask, found " +
         std::to_string(mask.window));
  }
  if (first_keys && !causal) fail("a causal mask with first_keys");
  if (!(scale >= 0) || !(softcap >= 0)) fail("a scale and a softcap of at least 0");
}

void require_sinks(const Context& ctx, const AttentionSinks& sinks, const Shape& weights,
                   DType dtype, std::string_view what) {
  if (sinks.logits) require_operand(ctx, sinks.logits, {weights[1]}, dtype, what);
  if (!sinks.weights) return;
  if (!sinks.logits) {
    throw Error(ExitCode::internal, std::string(what) + ": weights without logits");
  }
  require_operand(ctx, sinks.weights, weights, statistic_dtype(dtype), what);
}

void require_rotation(const Context& ctx, const HeadLayout& layout, const RotaryTables& tables,
                      const TokenPosition& first_position, Dim T, CView qkv) {
  const auto& [cosines, sines] = tables;
  const auto [T_max, half] = cosines.dims<2>("rope cosines");
  require(2 * half <= layout.head_width, "rope cosines: more pairs than a head has");
  require_tables(ctx, cosines, sines, T_max, half);
  require_dtype(ctx, cosines, statistic_dtype(qkv.dtype()), "rope cosines");
  require_position(ctx, first_position, qkv.shape()[0], "rope first_position");
  require(first_position.value + T <= T_max,
          "rope first_position: the table of angles ends before the sequence");
}

std::string_view name_of(AttentionMask::Kind kind) {
  switch (kind) {
    case AttentionMask::Kind::causal: return "causal";
    case AttentionMask::Kind::none: return "none";
  }
  return "?";
}

void rope_table(Context& ctx, std::span<const double> frequencies, double magnitude, View cosines,
                View sines) {
  const auto [T_max, half] = cosines.dims<2>("rope_table cosines");
  require_tables(ctx, cosines, sines, T_max, half);
  require(std::ssize(frequencies) == half, "rope_table cosines: a column for every frequency");
  if (on_meta(ctx, "rope_table", 10.0 * static_cast<double>(T_max * half), {cosines, sines})) {
    return;
  }
  const Tensor cosines_here = angle_table(cosines, frequencies, magnitude, std::cos);
  const Tensor sines_here = angle_table(sines, frequencies, magnitude, std::sin);
  copy(ctx, cosines_here.view(), cosines);
  copy(ctx, sines_here.view(), sines);
  synchronize(ctx);  // before the host's memory goes
}

void rope(Context& ctx, const HeadLayout& layout, CView cosines, CView sines,
          const TokenPosition& first_position, Rotation rotation, View qkv) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "rope qkv");
  require_rotation(ctx, layout, {cosines, sines}, first_position, T, qkv);
  const Dim half = cosines.shape()[1];
  const Dim pairs = B * T * (layout.heads + layout.kv_heads) * half;
  if (on_meta(ctx, "rope", 6.0 * static_cast<double>(pairs), {qkv, cosines, sines})) return;
  dispatch<cuda::rope, cpu::rope>(ctx, layout, cosines, sines, first_position, rotation, qkv);
}

void attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                       CView qkv, View out, View log_sum_exp) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_forward qkv");
  require_mask(scores, "attention_forward");
  require_first_keys(ctx, scores, B, T, "attention_forward");
  require_operand(ctx, out, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "attention_forward out");
  require_operand(ctx, log_sum_exp, {B, layout.heads, T}, statistic_dtype(qkv.dtype()),
                  "attention_forward log_sum_exp");
  require_sinks(ctx, scores.sinks, {B, layout.heads, T}, qkv.dtype(), "attention_forward sinks");
  const cuda::AttentionProblem problem = {layout, scores, T, false};
  note_kernel(ctx, "attention_forward", cuda::kAttentionForward, problem,
              [&, samples = B] { return text_of(problem, samples); });
  if (on_meta(ctx, "attention_forward", 2 * seen_share(scores.mask, T) * square_flops(layout, B, T),
              {qkv, out, log_sum_exp},
              workspace_for(ctx,
                            cpu::attention_forward_workspace(ctx.threads(), layout, T, qkv.dtype()),
                            cuda::attention_forward_workspace(layout, B, T)))) {
    return;
  }
  dispatch<cuda::attention_forward, cpu::attention_forward>(ctx, layout, scores, qkv, out,
                                                            log_sum_exp);
}

void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                        CView dout, const AttentionSaved& saved,
                        const AttentionGradients& gradients) {
  const auto& [qkv, out, log_sum_exp] = saved;
  const auto& [dqkv, dbias, accumulate_bias] = gradients;
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_backward qkv");
  require_mask(scores, "attention_backward");
  require_first_keys(ctx, scores, B, T, "attention_backward");
  const Shape out_shape = {B, T, layout.heads * layout.head_width};
  require_operand(ctx, dout, out_shape, qkv.dtype(), "attention_backward dout");
  require_operand(ctx, out, out_shape, qkv.dtype(), "attention_backward out");
  require_operand(ctx, log_sum_exp, {B, layout.heads, T}, statistic_dtype(qkv.dtype()),
                  "attention_backward log_sum_exp");
  require_operand(ctx, dqkv, qkv.shape(), qkv.dtype(), "attention_backward dqkv");
  const Dim width = layout.packed_width();
  if (dbias) require_gradient(ctx, dbias, {width}, qkv.dtype(), "attention_backward dbias");
  const double bias_flops = dbias ? static_cast<double>(dqkv.numel()) : 0;
  const cuda::AttentionProblem problem = {layout, scores, T, ctx.deterministic()};
  note_kernel(ctx, "attention_backward", cuda::kAttentionBackward, problem,
              [&, samples = B] { return text_of(problem, samples); });
  if (dbias) {
    plan_partials(ctx, "attention_backward",
                  std::max(cuda::column_sums_partials(B * T, width),
                           cuda::attention_bias_partials(layout, B, T)));
  }
  if (on_meta(ctx, "attention_backward",
              5 * seen_share(scores.mask, T) * square_flops(layout, B, T) + bias_flops,
              {dout, qkv, out, log_sum_exp, dqkv, dbias},
              workspace_for(
                  ctx, cpu::attention_backward_workspace(ctx.threads(), layout, T, qkv.dtype()),
                  cuda::attention_backward_workspace(layout, B, T, ctx.deterministic())))) {
    return;
  }
  dispatch<cuda::attention_backward, cpu::attention_backward>(ctx, layout, scores, dout, saved,
                                                              gradients);
}

void attention_sinks_backward(Context& ctx, const HeadLayout& layout, CView dout, CView out,
                              CView weights, Accumulate accumulate, View dlogits) {
  require_here(ctx, out, "attention_sinks_backward out");
  const auto [B, T, width] = out.dims<3>("attention_sinks_backward out");
  const DType statistic = statistic_dtype(out.dtype());
  require_shape(out, {B, T, layout.heads * layout.head_width}, "attention_sinks_backward out");
  require_operand(ctx, dout, out.shape(), out.dtype(), "attention_sinks_backward dout");
  require_operand(ctx, weights, {B, layout.heads, T}, statistic,
                  "attention_sinks_backward weights");
  require_gradient(ctx, dlogits, {layout.heads}, out.dtype(), "attention_sinks_backward dlogits");
  if (on_meta(ctx, "attention_sinks_backward", 2.0 * static_cast<double>(out.numel()),
              {dout, out, weights, dlogits},
              workspace_for(ctx, 0, cuda::attention_sinks_workspace(layout)))) {
    return;
  }
  dispatch<cuda::attention_sinks_backward, cpu::attention_sinks_backward>(
      ctx, layout, dout, out, weights, accumulate, dlogits);
}

void attention_reference_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, const Dropout& dropout,
                                 View out, View probabilities) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_reference_forward qkv");
  require_mask(scores, "attention_reference_forward");
  require_first_keys(ctx, scores, B, T, "attention_reference_forward");
  require_sinks(ctx, scores.sinks, {B, layout.heads, T}, qkv.dtype(),
                "attention_reference_forward sinks");
  require_operand(ctx, out, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "attention_reference_forward out");
  require_operand(ctx, probabilities, {B, layout.heads, T, T}, qkv.dtype(),
                  "attention_reference_forward probabilities");
  require_dropout(ctx, dropout, B);
  require_heads(dropout, layout.heads);
  if (on_meta(ctx, "attention_reference_forward", 2 * square_flops(layout, B, T),
              {qkv, out, probabilities},
              reference_workspace(ctx, layout, scores, T, qkv.dtype(), dropout))) {
    return;
  }
  dispatch<cuda::attention_reference_forward, cpu::attention_reference_forward>(
      ctx, layout, scores, qkv, dropout, out, probabilities);
}

void attention_reference_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionReferenceSaved& saved, View dprobabilities,
                                  View dqkv) {
  const auto& [qkv, probabilities, dropout] = saved;
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_reference_backward qkv");
  require_mask(scores, "attention_reference_backward");
  require_first_keys(ctx, scores, B, T, "attention_reference_backward");
  const Shape square = {B, layout.heads, T, T};
  require_operand(ctx, dout, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "attention_reference_backward dout");
  require_operand(ctx, probabilities, square, qkv.dtype(),
                  "attention_reference_backward probabilities");
  require_operand(ctx, dprobabilities, square, qkv.dtype(),
                  "attention_reference_backward dprobabilities");
  require_operand(ctx, dqkv, qkv.shape(), qkv.dtype(), "attention_reference_backward dqkv");
  require_dropout(ctx, dropout, B);
  require_heads(dropout, layout.heads);
  if (on_meta(ctx, "attention_reference_backward", 4 * square_flops(layout, B, T),
              {dout, qkv, probabilities, dprobabilities, dqkv},
              reference_workspace(ctx, layout, scores, T, qkv.dtype(), dropout))) {
    return;
  }
  dispatch<cuda::attention_reference_backward, cpu::attention_reference_backward>(
      ctx, layout, scores, dout, saved, dprobabilities, dqkv);
}

}  // namespace hyperslab::ops
