// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/experts.hpp"

#include <algorithm>

#include "backend.hpp"
#include "checks.hpp"
#include "cuda/experts/product_table.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "kernel_choice.hpp"
#include "quantized_checks.hpp"

namespace hyperslab::ops {
namespace {

constexpr double kRouterFlops = 12;  // per logit: an exponential, sums and comparisons
constexpr double kWeightedForwardFlops = 12;
constexpr double kWeightedBackwardFlops = 22;

double touched(CView view) { return static_cast<double>(view.numel()); }

void require_rule(const RouterRule& rule) {
  const bool counts = rule.count > 0 && rule.active > 0 && rule.active <= rule.count;
  const bool groups = rule.groups > 0 && rule.active_groups > 0 &&
                      rule.active_groups <= rule.groups && rule.count % rule.groups == 0;
  require(counts && groups && rule.active <= rule.active_groups * rule.per_group(),
          "experts: no rule of a router");
}

/// The tokens of the logits.
Dim require_logits(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                   const char* op) {
  require_rule(rule);
  require_here(ctx, logits, op);
  const Dim tokens = leading(logits.shape());
  require_rows(ctx, logits, tokens, rule.count, statistic_dtype(logits.dtype()), op);
  require_rows(ctx, experts, tokens, rule.active, DType::i32, op);
  return tokens;
}

Dim require_statistics(Context& ctx, const RouterRule& rule, CView statistics, DType dtype,
                       const char* op) {
  require_here(ctx, statistics, op);
  const Dim samples = leading(statistics.shape());
  require_rows(ctx, statistics, samples, router_statistics_width(rule.count), dtype, op);
  return samples;
}

Dim require_activation(Context& ctx, Activation activation, const WeightedRows& in, CView inner,
                       const char* op) {
  require_here(ctx, inner, op);
  const Dim rows = leading(inner.shape());
  const Dim width = last(inner, op);
  require_rows(ctx, in.pre, rows, is_gated(activation) ? 2 * width : width, inner.dtype(), op);
  require_count(ctx, in.weights, rows, statistic_dtype(inner.dtype()), op);
  if (in.used) require_count(ctx, in.used, 1, DType::i32, op);
  return rows;
}

}  // namespace

void route(Context& ctx, const RouterRule& rule, CView logits, CView bias, View experts,
           View weights) {
  const Dim tokens = require_logits(ctx, rule, logits, experts, "route");
  if (bias) require_operand(ctx, bias, {rule.count}, logits.dtype(), "route bias");
  require_rows(ctx, weights, tokens, rule.active, logits.dtype(), "route weights");
  if (on_meta(ctx, "route", kRouterFlops * touched(logits), {logits, experts, weights})) return;
  dispatch<cuda::route, cpu::route>(ctx, rule, logits, bias, experts, weights);
}

void router_statistics(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                       View statistics) {
  const Dim tokens = require_logits(ctx, rule, logits, experts, "router_statistics");
  const Dim samples =
      require_statistics(ctx, rule, statistics, logits.dtype(), "router_statistics");
  require(samples > 0 && tokens % samples == 0, "router_statistics: no equal samples");
  if (on_meta(
          ctx, "router_statistics", kRouterFlops * touched(logits), {logits, statistics},
          workspace_for(
              ctx, 0, cuda::router_statistics_workspace(samples, tokens / samples, rule.count)))) {
    return;
  }
  dispatch<cuda::router_statistics, cpu::router_statistics>(ctx, rule, logits, experts, statistics);
}

void add_router_statistics(Context& ctx, const RouterRule& rule, const RouterLosses& losses,
                           CView statistics, View sums, View loads) {
  (void)require_statistics(ctx, rule, statistics, statistics.dtype(), "add_router_statistics");
  require_sums(ctx, sums, "add_router_statistics sums");
  require_operand(ctx, loads, {rule.count}, sums.dtype(), "add_router_statistics loads");
  require(losses.tokens > 0, "add_router_statistics: samples without tokens");
  if (on_meta(ctx, "add_router_statistics", 2 * touched(statistics), {statistics})) return;
  dispatch<cuda::add_router_statistics, cpu::add_router_statistics>(ctx, rule, losses, statistics,
                                                                    sums, loads);
}

void update_router_bias(Context& ctx, float rate, CView loads, const StepState* state, View bias) {
  require_here(ctx, loads, "update_router_bias loads");
  require_operand(ctx, bias, loads.shape(), statistic_dtype(loads.dtype()), "update_router_bias");
  if (on_meta(ctx, "update_router_bias", 3 * touched(loads), {loads, bias, bias})) return;
  require(state != nullptr, "update_router_bias: no state of the step");
  dispatch<cuda::update_router_bias, cpu::update_router_bias>(ctx, rate, loads, state, bias);
}

void publish_loads(Context& ctx, CView loads, const StepState* state, View ring) {
  require_here(ctx, loads, "publish_loads");
  require_count(ctx, ring, kResultRing * loads.numel(), loads.dtype(), "publish_loads ring");
  if (on_meta(ctx, "publish_loads", 0, {loads, loads})) return;  // read and written
  require(state != nullptr, "publish_loads: no state of the step");
  dispatch<cuda::publish_loads, cpu::publish_loads>(ctx, loads, state, ring);
}

void route_backward(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                    const RouterGradient& gradient, View dlogits) {
  const Dim tokens = require_logits(ctx, rule, logits, experts, "route_backward");
  require_rows(ctx, gradient.dweights, tokens, rule.active, logits.dtype(), "route_backward dw");
  require_rows(ctx, dlogits, tokens, rule.count, logits.dtype(), "route_backward dlogits");
  if (gradient.losses.any()) {
    const Dim samples = require_statistics(ctx, rule, gradient.statistics, logits.dtype(),
                                           "route_backward statistics");
    require(samples > 0 && tokens % samples == 0 && gradient.losses.tokens > 0,
            "route_backward: no equal samples");
  }
  if (on_meta(ctx, "route_backward", 2 * kRouterFlops * touched(logits), {logits, dlogits})) return;
  require(!gradient.losses.any() || gradient.state != nullptr,
          "route_backward: losses without the step's state");
  dispatch<cuda::route_backward, cpu::route_backward>(ctx, rule, logits, experts, gradient,
                                                      dlogits);
}

void sort_by_expert(Context& ctx, CView experts, Dim first_expert, View first_rows, View pairs,
                    View rows) {
  require_dtype(ctx, experts, DType::i32, "sort_by_expert experts");
  require_dtype(ctx, first_rows, DType::i32, "sort_by_expert first_rows");
  require_dtype(ctx, pairs, DType::i32, "sort_by_expert pairs");
  require_count(ctx, rows, experts.numel(), DType::i32, "sort_by_expert rows");
  require(first_rows.numel() > 1 && first_expert >= 0, "sort_by_expert: no expert");
  if (on_meta(
          ctx, "sort_by_expert", 2 * touched(experts), {experts, pairs, rows},
          workspace_for(ctx, 0,
                        cuda::sort_by_expert_workspace(experts.numel(), first_rows.numel() - 1)))) {
    return;
  }
  dispatch<cuda::sort_by_expert, cpu::sort_by_expert>(ctx, experts, first_expert, first_rows, pairs,
                                                      rows);
}

void count_rows(Context& ctx, CView first_rows, View counts) {
  require_dtype(ctx, first_rows, DType::i32, "count_rows first_rows");
  require_count(ctx, counts, first_rows.numel() - 1, DType::i32, "count_rows counts");
  if (on_meta(ctx, "count_rows", touched(counts), {first_rows, counts})) return;
  dispatch<cuda::count_rows, cpu::count_rows>(ctx, first_rows, counts);
}

void cut_first_rows(Context& ctx, CView first_rows, Dim count, View parts) {
  require_dtype(ctx, first_rows, DType::i32, "cut_first_rows first_rows");
  require_rows(ctx, parts, leading(parts.shape()), first_rows.numel(), DType::i32,
               "cut_first_rows parts");
  require(count > 0, "cut_first_rows: no rows in a part");
  if (on_meta(ctx, "cut_first_rows", touched(parts), {first_rows, parts})) return;
  dispatch<cuda::cut_first_rows, cpu::cut_first_rows>(ctx, first_rows, count, parts);
}

void add_rows_beyond(Context& ctx, CView first_rows, Dim bound, View sums) {
  require_dtype(ctx, first_rows, DType::i32, "add_rows_beyond first_rows");
  require_sums(ctx, sums, "add_rows_beyond sums");
  if (on_meta(ctx, "add_rows_beyond", 1, {first_rows})) return;
  dispatch<cuda::add_rows_beyond, cpu::add_rows_beyond>(ctx, first_rows, bound, sums);
}

void order_arrivals(Context& ctx, CView arrived, View first_rows, View order, View inverse) {
  require_dtype(ctx, arrived, DType::i32, "order_arrivals arrived");
  const Dim experts = last(arrived, "order_arrivals arrived");
  require_count(ctx, first_rows, experts + 1, DType::i32, "order_arrivals first_rows");
  require_dtype(ctx, order, DType::i32, "order_arrivals order");
  require_count(ctx, inverse, order.numel(), DType::i32, "order_arrivals inverse");
  if (on_meta(ctx, "order_arrivals", 0, {arrived, order, inverse})) return;
  dispatch<cuda::order_arrivals, cpu::order_arrivals>(ctx, arrived, first_rows, order, inverse);
}

void gather_rows(Context& ctx, CView x, CView pairs, Dim divisor, View y, CView used) {
  require_here(ctx, x, "gather_rows x");
  require_dtype(ctx, pairs, DType::i32, "gather_rows pairs");
  require_rows(ctx, y, pairs.numel(), last(x, "gather_rows x"), x.dtype(), "gather_rows y");
  require(divisor > 0, "gather_rows: no divisor");
  if (used) require_count(ctx, used, 1, DType::i32, "gather_rows used");
  if (on_meta(ctx, "gather_rows", 0, {y, y, pairs})) return;  // read and written
  dispatch<cuda::gather_rows, cpu::gather_rows>(ctx, x, pairs, divisor, y, used);
}

void sum_rows(Context& ctx, CView x, CView rows, View y, const RowPart& part) {
  require_here(ctx, x, "sum_rows x");
  require_dtype(ctx, rows, DType::i32, "sum_rows rows");
  require_rows(ctx, y, leading(rows.shape()), last(x, "sum_rows x"), x.dtype(), "sum_rows y");
  if (part.used) require_count(ctx, part.used, 1, DType::i32, "sum_rows used");
  const double terms = static_cast<double>(rows.numel() * y.shape().back());
  if (on_meta(ctx, "sum_rows", terms, {x, rows, y})) return;
  dispatch<cuda::sum_rows, cpu::sum_rows>(ctx, x, rows, y, part);
}

void weighted_activation_forward(Context& ctx, Activation activation, const WeightedRows& rows,
                                 View y) {
  const char* op = "weighted_activation_forward";
  (void)require_activation(ctx, activation, rows, y, op);
  if (on_meta(ctx, op, kWeightedForwardFlops * touched(y), {rows.pre, rows.weights, y})) return;
  dispatch<cuda::weighted_activation_forward, cpu::weighted_activation_forward>(ctx, activation,
                                                                                rows, y);
}

void weighted_activation_backward(Context& ctx, Activation activation, const WeightedRows& rows,
                                  CView dy, View dpre, View dweights) {
  const char* op = "weighted_activation_backward";
  const Dim count = require_activation(ctx, activation, rows, dy, op);
  require_rows(ctx, dpre, count, rows.pre.shape().back(), rows.pre.dtype(), op);
  require_count(ctx, dweights, count, rows.weights.dtype(), op);
  const std::size_t workspace = cuda::weighted_activation_workspace(
      count, last(dy, op), 16 / static_cast<Dim>(size_of(dy.dtype())));
  if (on_meta(ctx, op, kWeightedBackwardFlops * touched(dy), {rows.pre, dy, dpre, dweights},
              workspace_for(ctx, 0, workspace))) {
    return;
  }
  dispatch<cuda::weighted_activation_backward, cpu::weighted_activation_backward>(
      ctx, activation, rows, dy, dpre, dweights);
}

}  // namespace hyperslab::ops
