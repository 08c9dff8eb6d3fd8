// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

/// The scores that a router makes of its logits: of all experts together, or of each alone.
enum class RouterScore : std::uint8_t { softmax, sigmoid };
[[nodiscard]] constexpr std::string_view name_of(RouterScore score) {
  return score == RouterScore::softmax ? "softmax" : "sigmoid";
}

/// Rules of a router. Below N are tokens, E is `count`, K is `active`.
struct RouterRule {
  Dim count = 0;   ///< experts
  Dim active = 0;  ///< experts that a token takes
  RouterScore score = RouterScore::softmax;
  bool normalize = false;  ///< a token's weights are divided by their sum
  float scale = 1;         ///< factor of all weights
  /// Equal groups of neighbouring experts, of which a token takes its experts from `active_groups`:
  /// those whose best score, with sigmoid the sum of the two best, is largest (DeepSeek-AI 2024,
  /// "DeepSeek-V3", section 2.1.2).
  Dim groups = 1;
  Dim active_groups = 1;
  /// Token n of a call takes the experts n K to n K + K - 1, modulo E, whatever their scores, which
  /// still are its weights: equal loads of N K / E rows, for measurements.
  bool in_turn = false;
  /// True if a token may take an expert by its place alone.
  [[nodiscard]] HS_HOST_DEVICE bool is_turn_of(Dim token, Dim expert) const {
    return (expert + count - token * active % count) % count < active;
  }
  [[nodiscard]] Dim per_group() const { return count / groups; }
};

/// Weights of the terms that a router adds to the loss. Groups of G samples are balanced together.
/// S samples, in groups of T tokens on all context ranks, add to the step's loss
///
///   balance G / S sum_g E / (K T^2) sum_e counts_ge scores_ge  +  z G / (S T) sum_t log(Z_t)^2
///
/// where counts_ge are the group's tokens that take expert e, scores_ge is the sum over its tokens
/// of the share that e has of a token's scores, and Z_t is the sum of the exponentials of a token's
/// logits. Counts are constant in the gradient (Fedus et al. 2022, section 2.2; Zoph et al. 2022).
struct RouterLosses {
  float balance = 0;
  float z = 0;
  Dim samples = 1;  ///< G
  Dim tokens = 0;   ///< T
  [[nodiscard]] bool any() const { return balance != 0 || z != 0; }
};

/// Entries of router_statistics() for a group of samples: E counts, E sums of scores' shares, the
/// sums of log(Z)^2 and of the entropies of shares in nats.
[[nodiscard]] constexpr Dim router_statistics_width(Dim experts) { return 2 * experts + 2; }

/// Chooses each token's K experts by score + bias, of equals the first, and gives their weights,
/// which are of the scores alone. logits: (N, E) f32 or f64; bias: (E) of that dtype, or absent;
/// experts: (N, K) i32, ascending; weights: (N, K) of the logits' dtype.
void route(Context& ctx, const RouterRule& rule, CView logits, CView bias, View experts,
           View weights);

/// The statistics of groups with N / groups neighbouring tokens each. statistics: (groups,
/// router_statistics_width(E)) of the logits' dtype, overwritten.
void router_statistics(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                       View statistics);
/// Adds the statistics of whole groups to the sums of a step: S times each of the two terms of
/// `losses`, without its weight, to kSumBalance and kSumRouterZ, S times the mean entropy of tokens
/// to kSumRouterEntropy, and the counts to loads: (E) of the sums' dtype.
void add_router_statistics(Context& ctx, const RouterRule& rule, const RouterLosses& losses,
                           CView statistics, View sums, View loads);

/// bias_e += rate sign(mean of loads - load_e), unless the step is skipped (Wang et al. 2024,
/// "Auxiliary-loss-free load balancing"). loads, bias: (E) f32 or f64.
void update_router_bias(Context& ctx, float rate, CView loads, const StepState* state, View bias);

/// ring[step % kResultRing] = loads, for the host, which reads them after the step's StepResult: to
/// be enqueued before finalize_step(). ring: (kResultRing, ...) with the shape of loads.
void publish_loads(Context& ctx, CView loads, const StepState* state, View ring);

/// dlogits of dweights: (N, K), and of the losses, times state.input.inverse_samples and the loss
/// scale. statistics: those of whole groups; absent if there are no losses. dlogits: (N, E).
struct RouterGradient {
  CView dweights;
  RouterLosses losses;
  CView statistics{};
  const StepState* state = nullptr;
};
void route_backward(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                    const RouterGradient& gradient, View dlogits);

/// Orders the pairs of a token and one of its experts by expert, then by token, and calls them
/// rows. Those of experts [first_expert, first_expert + E) count. experts: (N, K) i32, ascending in
/// a token; first_rows: (E + 1) i32: expert first_expert + e has rows [first_rows[e], first_rows[e
/// + 1]); pairs: i32: the pair n K + k of a row, of at least as many elements as there are rows;
/// rows: (N, K) i32: the row of a pair, -1 if its expert does not count.
void sort_by_expert(Context& ctx, CView experts, Dim first_expert, View first_rows, View pairs,
                    View rows);

/// counts[e] = first_rows[e + 1] - first_rows[e]. counts: (E) i32.
void count_rows(Context& ctx, CView first_rows, View counts);
/// Cuts rows into parts of `count`, which memory holds at once: parts[p, e] = first_rows[e] - p
/// count, at least 0 and at most `count`, are the experts' first rows in part p. first_rows: (E +
/// 1) i32; parts: (parts, E + 1) i32.
void cut_first_rows(Context& ctx, CView first_rows, Dim count, View parts);
/// sums[kSumRowsBeyond] += the rows from `bound` on, of first_rows: (E + 1) i32.
void add_rows_beyond(Context& ctx, CView first_rows, Dim bound, View sums);
/// Orders rows that arrived rank after rank, each rank's by expert, by expert, then by rank.
/// arrived: (P, E) i32, rows of every rank for every expert, R in all; first_rows: (E + 1) i32 of
/// the new order. order[i]: the place on arrival of row i of the new order, inverse: the other way
/// round; i32, of at least R elements, of which the first R are written.
void order_arrivals(Context& ctx, CView arrived, View first_rows, View order, View inverse);

/// y[r] = x[pairs[r] / divisor], zeros for a negative pair. pairs: (R) i32; x: (..., C), y: (R, C)
/// of one dtype. used: (1) i32: so many first rows are written, no others; absent: all.
void gather_rows(Context& ctx, CView x, CView pairs, Dim divisor, View y, CView used = {});
/// A part of the rows of experts: R rows from `first` on.
struct RowPart {
  Dim first = 0;
  Accumulate accumulate = Accumulate::no;
  CView used{};  ///< (1) i32: with 0 nothing is added; absent: there are rows
};
/// y[n] (+)= sum over k of x[rows[n, k] - part.first], in the order of k, in f32 or better; a
/// negative row and those of other parts are left out. x: (R, C); rows: (N, K) i32; y: (..., C) of
/// N rows.
void sum_rows(Context& ctx, CView x, CView rows, View y, const RowPart& part = {});

/// Rows of experts as a product reads them. Row r is values[pairs[r] / divisor], without pairs
/// values[r].
struct GatheredRows {
  GatheredRows() = default;
  // NOLINTBEGIN(google-explicit-constructor): rows in order
  GatheredRows(CView rows) : values(rows) {}
  GatheredRows(View rows) : values(rows) {}
  // NOLINTEND(google-explicit-constructor)
  CView values;
  CView pairs;  ///< (R) i32, as sort_by_expert() leaves them: not negative in rows that are used
  Dim divisor = 1;
  View room;   ///< (R, C): takes the rows in order where a kernel cannot gather them
  CView used;  ///< as gather_rows() has it

  [[nodiscard]] bool in_order() const { return !pairs; }
  /// (R, C): the rows, or memory of their size.
  [[nodiscard]] CView matrix() const { return in_order() ? values : CView(room); }
};
/// The rows in order: room, after a copy, if they are not.
CView rows_in_order(Context& ctx, const GatheredRows& rows);

/// Products of each expert's rows by its matrix. Only rows that some expert has are computed. x:
/// (R, C_in); weights: (E C_out, C_in), one matrix after the other; first_rows: (E + 1) i32; y: (R,
/// C_out). Gathered rows and rows in order give the same bits.
void experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows, View y);
/// experts_forward() of quantized weights, see quantized_linear_forward().
void quantized_experts_forward(Context& ctx, CView x, const CQuantizedMatrix& weights,
                               CView first_rows, ActivationFormat activations, View y);
/// dx[r] = dy[r] W_e for the rows of expert e; dx is overwritten there.
void experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights, CView first_rows,
                            View dx);
/// dW_e (+)= dy_e^T x_e; zero for an expert without rows if it is overwritten.
void experts_backward_weight(Context& ctx, const GatheredRows& dy, const GatheredRows& x,
                             CView first_rows, Accumulate accumulate, View dweights);

/// Rows before an activation, and the router's weights inside the second product's input. pre: (R,
/// F), gated: (R, 2F); weights: (R) f32 (f64 for f64); used: as gather_rows() has it.
struct WeightedRows {
  CView pre;
  CView weights;
  CView used{};
};
/// y[r] = weights[r] act(pre[r]). y: (R, F).
void weighted_activation_forward(Context& ctx, Activation activation, const WeightedRows& rows,
                                 View y);
/// dpre, which may alias rows.pre, and dweights[r] = <dy[r], act(pre[r])>.
void weighted_activation_backward(Context& ctx, Activation activation, const WeightedRows& rows,
                                  CView dy, View dpre, View dweights);

}  // namespace hyperslab::ops
