// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// One token's scores.
template <class T>
struct TokenScores {
  std::vector<T> scores;  ///< (E)
  T sum = 1;              ///< sum of the scores, 1 with softmax
  T log_sum = 0;          ///< log(Z)
};

template <class T>
void score(const RouterRule& rule, const T* logits, TokenScores<T>& out) {
  const T largest = *std::max_element(logits, logits + rule.count);
  T exponentials = 0;
  for (Dim e = 0; e < rule.count; ++e) exponentials += std::exp(logits[e] - largest);
  out.log_sum = largest + std::log(exponentials);
  out.scores.resize(static_cast<std::size_t>(rule.count));
  out.sum = 0;
  for (Dim e = 0; e < rule.count; ++e) {
    T& share = out.scores[static_cast<std::size_t>(e)];
    share = rule.score == RouterScore::softmax ? std::exp(logits[e] - largest) / exponentials
                                               : T(1) / (T(1) + std::exp(-logits[e]));
    out.sum += share;
  }
  if (rule.score == RouterScore::softmax) out.sum = 1;
}

/// Marks the `wanted` largest of values, of equals the first.
template <class T>
void mark_largest(const std::vector<T>& values, Dim wanted, std::vector<char>& marked) {
  marked.assign(values.size(), 0);
  for (Dim k = 0; k < wanted; ++k) {
    std::size_t best = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (marked[i] == 0 && (best == values.size() || values[i] > values[best])) best = i;
    }
    marked[best] = 1;
  }
}

/// The score of a group of neighbouring experts, whose values may be NaN.
template <class T>
T score_of_group(const RouterRule& rule, const T* choice) {
  T best = -INFINITY;
  T second = -INFINITY;
  for (Dim e = 0; e < rule.per_group(); ++e) {
    if (choice[e] > best) {
      second = std::exchange(best, choice[e]);
    } else if (choice[e] > second) {
      second = choice[e];
    }
  }
  return rule.score == RouterScore::sigmoid && rule.per_group() > 1 ? best + second : best;
}

/// Leaves the groups that a token may use as they are, and makes the others' choices impossible.
template <class T>
void keep_groups(const RouterRule& rule, std::vector<T>& choice) {
  if (rule.active_groups == rule.groups) return;
  thread_local std::vector<T> of_groups;
  thread_local std::vector<char> kept;
  const auto size = static_cast<std::size_t>(rule.per_group());
  of_groups.clear();
  for (std::size_t first = 0; first < choice.size(); first += size) {
    of_groups.push_back(score_of_group(rule, choice.data() + first));
  }
  mark_largest(of_groups, rule.active_groups, kept);
  for (std::size_t e = 0; e < choice.size(); ++e) {
    if (kept[e / size] == 0) choice[e] = -INFINITY;
  }
}

template <class T>
void route_tokens(const RouterRule& rule, Dim begin, Dim end, const T* logits, const T* bias,
                  std::int32_t* experts, T* weights) {
  thread_local TokenScores<T> token;
  thread_local std::vector<T> choice;
  thread_local std::vector<char> chosen;
  for (Dim n = begin; n < end; ++n) {
    score(rule, logits + n * rule.count, token);
    choice = token.scores;
    for (std::size_t e = 0; bias != nullptr && e < choice.size(); ++e) choice[e] += bias[e];
    if (rule.in_turn) {
      for (Dim e = 0; e < rule.count; ++e) {
        choice[static_cast<std::size_t>(e)] = rule.is_turn_of(n, e) ? T(1) : T(0);
      }
    } else {
      keep_groups(rule, choice);
    }
    mark_largest(choice, rule.active, chosen);
    Dim k = n * rule.active;
    T sum = 0;
    for (std::size_t e = 0; e < choice.size(); ++e) {
      if (chosen[e] == 0) continue;
      experts[k] = static_cast<std::int32_t>(e);
      weights[k++] = token.scores[e];
      sum += token.scores[e];
    }
    const T factor = static_cast<T>(rule.scale) / (rule.normalize ? sum + T(1e-20) : T(1));
    for (k = n * rule.active; k < (n + 1) * rule.active; ++k) weights[k] *= factor;
  }
}

/// Gradients of a token's scores by those of its weights.
template <class T>
void weights_to_scores(const RouterRule& rule, const TokenScores<T>& token,
                       const std::int32_t* experts, const T* dweights, std::vector<T>& dscores) {
  T sum = 0;
  T dot = 0;
  for (Dim k = 0; k < rule.active; ++k) {
    const T share = token.scores[static_cast<std::size_t>(experts[k])];
    sum += share;
    dot += dweights[k] * share;
  }
  sum += T(1e-20);
  const T scale = static_cast<T>(rule.scale);
  for (Dim k = 0; k < rule.active; ++k) {
    dscores[static_cast<std::size_t>(experts[k])] +=
        rule.normalize ? scale * (dweights[k] - dot / sum) / sum : scale * dweights[k];
  }
}

/// Adds the gradients of a token's scores by their shares in a sample, which balance weighs.
template <class T>
void balance_to_scores(const RouterRule& rule, const TokenScores<T>& token, const T* counts,
                       T factor, std::vector<T>& dscores) {
  T dot = 0;
  for (Dim e = 0; e < rule.count; ++e) {
    dot += counts[e] * token.scores[static_cast<std::size_t>(e)] / token.sum;
  }
  const bool of_share = rule.score == RouterScore::sigmoid;
  for (Dim e = 0; e < rule.count; ++e) {
    const T gradient = of_share ? (counts[e] - dot) / token.sum : counts[e];
    dscores[static_cast<std::size_t>(e)] += factor * gradient;
  }
}

/// Factors of the two losses' gradients.
template <class T>
struct LossFactors {
  T balance = 0;
  T z = 0;
};
template <class T>
LossFactors<T> loss_factors(const RouterRule& rule, const RouterGradient& gradient) {
  if (!gradient.losses.any()) return {};
  const RouterLosses& losses = gradient.losses;
  const T tokens = static_cast<T>(losses.tokens);
  const T scale = static_cast<T>(losses.samples) *
                  static_cast<T>(gradient.state->input.inverse_samples) *
                  T(gradient.state->loss_scale);
  return {scale * T(losses.balance) * T(rule.count) / (T(rule.active) * tokens * tokens),
          scale * T(losses.z) * 2 / tokens};
}

template <class T>
void token_backward(const RouterRule& rule, const TokenScores<T>& token, const T* logits,
                    const std::vector<T>& dscores, T z, T* dlogits) {
  if (rule.score == RouterScore::softmax) {
    T dot = 0;
    for (std::size_t e = 0; e < dscores.size(); ++e) dot += dscores[e] * token.scores[e];
    for (std::size_t e = 0; e < dscores.size(); ++e) {
      dlogits[e] = token.scores[e] * (dscores[e] - dot + z * token.log_sum);
    }
    return;
  }
  for (std::size_t e = 0; e < dscores.size(); ++e) {
    const T slope = token.scores[e] * (1 - token.scores[e]);
    dlogits[e] = dscores[e] * slope + z * token.log_sum * std::exp(logits[e] - token.log_sum);
  }
}

}  // namespace

void route(Context& ctx, const RouterRule& rule, CView logits, CView bias, View experts,
           View weights) {
  with_real(logits.dtype(), "route", [&]<class T>(T) {
    parallel_chunks(ctx.threads(), logits.rows(), rule.count * (rule.active + 16),
                    [&](int, Dim begin, Dim end) {
                      route_tokens(rule, begin, end, logits.data<T>(), optional_data<T>(bias),
                                   experts.data<std::int32_t>(), weights.data<T>());
                    });
  });
}

void router_statistics(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                       View statistics) {
  with_real(logits.dtype(), "router_statistics", [&]<class T>(T) {
    const Dim samples = statistics.rows();
    const Dim tokens = logits.rows() / std::max<Dim>(1, samples);
    const auto one = [&](Dim b) {
      T* counts = statistics.data<T>() + b * router_statistics_width(rule.count);
      T* shares = counts + rule.count;
      std::fill_n(counts, router_statistics_width(rule.count), T(0));
      thread_local TokenScores<T> token;
      for (Dim n = b * tokens; n < (b + 1) * tokens; ++n) {
        score(rule, logits.data<T>() + n * rule.count, token);
        for (Dim e = 0; e < rule.count; ++e) {
          const T share = token.scores[static_cast<std::size_t>(e)] / token.sum;
          shares[e] += share;
          if (share > 0) shares[rule.count + 1] -= share * std::log(share);
        }
        const auto* taken = experts.data<std::int32_t>() + n * rule.active;
        for (Dim k = 0; k < rule.active; ++k) counts[taken[k]] += 1;
        shares[rule.count] += token.log_sum * token.log_sum;
      }
    };
    parallel_chunks(ctx.threads(), samples, tokens * rule.count * 16, [&](int, Dim begin, Dim end) {
      for (Dim b = begin; b < end; ++b) one(b);
    });
  });
}

void add_router_statistics(Context& /*ctx*/, const RouterRule& rule, const RouterLosses& losses,
                           CView statistics, View sums, View loads) {
  with_real(statistics.dtype(), "add_router_statistics", [&]<class T>(T) {
    const auto tokens = static_cast<double>(losses.tokens);
    const auto samples = static_cast<double>(losses.samples);
    const double factor = samples * static_cast<double>(rule.count) /
                          (static_cast<double>(rule.active) * tokens * tokens);
    for (Dim b = 0; b < statistics.rows(); ++b) {
      const T* counts = statistics.data<T>() + b * router_statistics_width(rule.count);
      const T* shares = counts + rule.count;
      double dot = 0;
      for (Dim e = 0; e < rule.count; ++e) {
        dot += static_cast<double>(counts[e]) * static_cast<double>(shares[e]);
        loads.data<T>()[e] += counts[e];
      }
      add_to_sums(sums, kSumBalance, factor * dot);
      add_to_sums(sums, kSumRouterZ, samples * static_cast<double>(shares[rule.count]) / tokens);
      add_to_sums(sums, kSumRouterEntropy,
                  samples * static_cast<double>(shares[rule.count + 1]) / tokens);
    }
  });
}

void update_router_bias(Context& /*ctx*/, float rate, CView loads, const StepState* state,
                        View bias) {
  if (state->skip != 0) return;
  with_real(loads.dtype(), "update_router_bias", [&]<class T>(T) {
    const T* load = loads.data<T>();
    const Dim experts = loads.numel();
    double sum = 0;
    for (Dim e = 0; e < experts; ++e) sum += static_cast<double>(load[e]);
    const double mean = sum / static_cast<double>(experts);
    for (Dim e = 0; e < experts; ++e) {
      const auto above = static_cast<double>(load[e]) - mean;
      bias.data<T>()[e] -= static_cast<T>(rate) * T((above > 0) - (above < 0));
    }
  });
}

void publish_loads(Context& /*ctx*/, CView loads, const StepState* state, View ring) {
  with_real(loads.dtype(), "publish_loads", [&]<class T>(T) {
    const Dim slot = state->input.step % kResultRing;
    std::copy_n(loads.data<T>(), loads.numel(), ring.data<T>() + slot * loads.numel());
  });
}

void route_backward(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                    const RouterGradient& gradient, View dlogits) {
  with_real(logits.dtype(), "route_backward", [&]<class T>(T) {
    const LossFactors<T> factors = loss_factors<T>(rule, gradient);
    const Dim samples = gradient.losses.any() ? std::max<Dim>(1, gradient.statistics.rows()) : 1;
    const Dim tokens = std::max<Dim>(1, logits.rows() / samples);
    const auto work = [&](int, Dim begin, Dim end) {
      thread_local TokenScores<T> token;
      thread_local std::vector<T> dscores;
      for (Dim n = begin; n < end; ++n) {
        const T* of_token = logits.data<T>() + n * rule.count;
        score(rule, of_token, token);
        dscores.assign(token.scores.size(), T(0));
        weights_to_scores(rule, token, experts.data<std::int32_t>() + n * rule.active,
                          gradient.dweights.data<T>() + n * rule.active, dscores);
        if (factors.balance != 0) {
          const T* counts =
              gradient.statistics.data<T>() + n / tokens * router_statistics_width(rule.count);
          balance_to_scores(rule, token, counts, factors.balance, dscores);
        }
        token_backward(rule, token, of_token, dscores, factors.z,
                       dlogits.data<T>() + n * rule.count);
      }
    };
    parallel_chunks(ctx.threads(), logits.rows(), rule.count * 32, work);
  });
}

}  // namespace hyperslab::ops::cpu
