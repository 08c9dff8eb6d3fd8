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

constexpr Dim kRoundedRows = 512;  // at once, as the workspace is planned before rows are counted

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

/// Sizes of a product of each expert's rows.
struct Products {
  Dim experts;
  Dim rows;
  Dim in;
  Dim out;
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
};

void require_gathered(Context& ctx, const GatheredRows& rows, const char* op) {
  if (rows.in_order()) return;
  require_here(ctx, rows.values, op);
  require_dtype(ctx, rows.pairs, DType::i32, op);
  require_rows(ctx, rows.room, rows.pairs.numel(), last(rows.values, op), rows.values.dtype(), op);
}

Products require_products(Context& ctx, CView in, CView out, const Shape& weights, CView first_rows,
                          const char* op) {
  require_dtype(ctx, first_rows, DType::i32, op);
  const Dim experts = first_rows.numel() - 1;
  require(experts > 0 && weights.rank() == 2 && weights[0] % experts == 0,
          "experts: other weights than first_rows has experts");
  const Products sizes = {experts, leading(in.shape()), weights[1], weights[0] / experts};
  require_rows(ctx, in, sizes.rows, sizes.in, in.dtype(), op);
  require_rows(ctx, out, sizes.rows, sizes.out, in.dtype(), op);
  return sizes;
}

/// True if a GPU did the op: its kernels read there which rows an expert has.
template <auto cuda_op, class... Operands>
bool done_on_gpu(Context& ctx, const Operands&... operands) {
  if constexpr (kHasCuda) {
    if (ctx.device() != Device::cuda) return false;
    cuda_op(ctx, operands...);
    if (OpObserver* observer = ctx.recorder().op_observer()) observer->end();
    return true;
  } else {
    return false;
  }
}

/// On `meta`: notes the kernel that a GPU takes for a product.
template <class Table>
void note_product(Context& ctx, std::string_view op, const Table& table,
                  const cuda::ExpertsProblem& problem) {
  note_kernel(ctx, op, table, problem, [&] {
    return std::to_string(problem.experts) + " experts, " + std::to_string(problem.rows) + " x " +
           std::to_string(problem.depth) + " to " + std::to_string(problem.columns) + " columns, " +
           std::string(name_of(problem.dtype));
  });
}

/// True if a kernel of the table reads the problem's rows where they lie. problem: a function.
template <class Table, class Problem>
bool kernel_gathers(const Context& ctx, const Table& table, const Problem& problem) {
  cuda::Features features;
  if (ctx.device() == Device::meta) {
    if (ctx.planned() != Device::cuda) return false;
    features = cuda::kHopper;
  } else if constexpr (kHasCuda) {
    if (ctx.device() != Device::cuda) return false;
    features = cuda::features_of_kernels();
  } else {
    return false;
  }
  const cuda::ExpertsProblem of = problem();
  return std::ranges::any_of(table, [&](const auto& kernel) {
    return cuda::reason_against(kernel, of, features).empty();
  });
}

/// The rows as they are if a kernel of the table reads them there, else in order.
template <class Table, class Problem>
GatheredRows rows_for(Context& ctx, const Table& table, const GatheredRows& rows,
                      const Problem& problem) {
  if (rows.in_order() || kernel_gathers(ctx, table, problem)) return rows;
  return rows_in_order(ctx, rows);
}

/// Calls work(expert, first row, rows) for every expert.
template <class Work>
void for_experts(const Context& ctx, const Products& sizes, CView first_rows, Work&& work) {
  require(ctx.device() == Device::cpu, "rows of experts are counted on the host");
  const auto* first = first_rows.data<std::int32_t>();
  require(first[0] == 0 && first[sizes.experts] <= sizes.rows, "experts have more rows than fit");
  for (Dim expert = 0; expert < sizes.experts; ++expert) {
    require(first[expert] <= first[expert + 1], "rows of experts are not ascending");
    work(expert, Dim{first[expert]}, Dim{first[expert + 1] - first[expert]});
  }
}

/// The matrix of an expert.
template <class AnyView>
AnyView matrix_of(const Products& sizes, AnyView weights, Dim expert) {
  return weights.slice(expert * sizes.out, sizes.out);
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

void cut_first_rows(Context& ctx, CView first_rows, Dim first, Dim count, View part) {
  require_dtype(ctx, first_rows, DType::i32, "cut_first_rows first_rows");
  require_count(ctx, part, first_rows.numel(), DType::i32, "cut_first_rows part");
  require(first >= 0 && count >= 0, "cut_first_rows: no part");
  if (on_meta(ctx, "cut_first_rows", touched(part), {first_rows, part})) return;
  dispatch<cuda::cut_first_rows, cpu::cut_first_rows>(ctx, first_rows, first, count, part);
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

CView rows_in_order(Context& ctx, const GatheredRows& rows) {
  require_gathered(ctx, rows, "rows_in_order");
  if (rows.in_order()) return rows.values;
  gather_rows(ctx, rows.values, rows.pairs, rows.divisor, rows.room, rows.used);
  return rows.room;
}

void experts_forward(Context& ctx, const GatheredRows& given, CView weights, CView first_rows,
                     View y) {
  const char* op = "experts_forward";
  require_gathered(ctx, given, op);
  const Products sizes = require_products(ctx, given.matrix(), y, weights.shape(), first_rows, op);
  const auto problem_of = [&](const GatheredRows& rows) {
    return cuda::experts_problem(first_rows, rows, sizes.out, weights, y);
  };
  const GatheredRows x =
      rows_for(ctx, cuda::kExpertsForward, given, [&] { return problem_of(given); });
  note_product(ctx, op, cuda::kExpertsForward, problem_of(x));
  if (on_meta(ctx, op, sizes.flops(), {x.matrix(), weights, y})) return;
  if (done_on_gpu<cuda::experts_forward>(ctx, x, weights, first_rows, y)) return;
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    if (rows == 0) return;
    linear_forward(ctx, x.values.slice(first, rows), matrix_of(sizes, weights, expert), {},
                   y.slice(first, rows));
  });
}

void quantized_experts_forward(Context& ctx, CView x, const CQuantizedMatrix& weights,
                               CView first_rows, ActivationFormat activations, View y) {
  const char* op = "quantized_experts_forward";
  require_quantized(ctx, weights, op);
  const Products sizes = require_products(ctx, x, y, weights.shape, first_rows, op);
  const QuantizedProduct most = {kRoundedRows,   sizes.out,   sizes.in,
                                 weights.format, activations, x.dtype()};
  if (on_meta(ctx, op, sizes.flops(), {x, weights.codes, weights.scales, weights.block_scales, y},
              cpu::quantized_linear_forward_workspace(ctx.threads(), most))) {
    return;
  }
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    const CQuantizedMatrix weight = rows_of(weights, expert * sizes.out, sizes.out);
    const Dim step = activations == ActivationFormat::none ? std::max<Dim>(rows, 1) : kRoundedRows;
    for (Dim row = first; row < first + rows; row += step) {
      const Dim count = std::min(step, first + rows - row);
      quantized_linear_forward(ctx, x.slice(row, count), weight, {}, activations,
                               y.slice(row, count));
    }
  });
}

void experts_backward_input(Context& ctx, const GatheredRows& given, CView weights,
                            CView first_rows, View dx) {
  const char* op = "experts_backward_input";
  require_gathered(ctx, given, op);
  const Products sizes = require_products(ctx, dx, given.matrix(), weights.shape(), first_rows, op);
  const auto problem_of = [&](const GatheredRows& rows) {
    return cuda::experts_problem(first_rows, rows, sizes.in, weights, dx);
  };
  const GatheredRows dy =
      rows_for(ctx, cuda::kExpertsBackwardInput, given, [&] { return problem_of(given); });
  note_product(ctx, op, cuda::kExpertsBackwardInput, problem_of(dy));
  if (on_meta(ctx, op, sizes.flops(), {dy.matrix(), weights, dx})) return;
  if (done_on_gpu<cuda::experts_backward_input>(ctx, dy, weights, first_rows, dx)) return;
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    if (rows == 0) return;
    linear_backward_input(ctx, dy.values.slice(first, rows), matrix_of(sizes, weights, expert),
                          Accumulate::no, dx.slice(first, rows));
  });
}

void experts_backward_weight(Context& ctx, const GatheredRows& given_dy,
                             const GatheredRows& given_x, CView first_rows, Accumulate accumulate,
                             View dweights) {
  const char* op = "experts_backward_weight";
  require_gathered(ctx, given_dy, op);
  require_gathered(ctx, given_x, op);
  const CView x_rows = given_x.matrix();
  const Products sizes =
      require_products(ctx, x_rows, given_dy.matrix(), dweights.shape(), first_rows, op);
  require_gradient(ctx, dweights, dweights.shape(), x_rows.dtype(), op);
  const auto given = [&] { return cuda::weights_problem(first_rows, given_dy, given_x, dweights); };
  const GatheredRows dy = rows_for(ctx, cuda::kExpertsBackwardWeight, given_dy, given);
  const GatheredRows x = rows_for(ctx, cuda::kExpertsBackwardWeight, given_x, given);
  note_product(ctx, op, cuda::kExpertsBackwardWeight,
               cuda::weights_problem(first_rows, dy, x, dweights));
  if (on_meta(ctx, op, sizes.flops(), {dy.matrix(), x.matrix(), dweights})) return;
  if (done_on_gpu<cuda::experts_backward_weight>(ctx, dy, x, first_rows, accumulate, dweights)) {
    return;
  }
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    const View dw = matrix_of(sizes, dweights, expert);
    if (rows > 0) {
      linear_backward_weight(ctx, dy.values.slice(first, rows), x.values.slice(first, rows),
                             accumulate, dw, {});
    } else if (accumulate == Accumulate::no) {
      fill(ctx, 0, dw);
    }
  });
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
