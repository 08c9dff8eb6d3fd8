// SPDX-License-Identifier: Apache-2.0
// A router's choice and its gradient: a warp has a token.
#include "router.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace router;

struct RouteCall {
  RouterRule rule;
  Dim tokens;
  const float* logits;
  const float* bias;  ///< or null
  std::int32_t* experts;
  float* weights;
};

/// Writes the chosen experts of a token and their weights, ascending.
template <int kEach>
__device__ void write_chosen(const RouteCall& call, Dim token, const TokenScores<kEach>& scores,
                             unsigned chosen) {
  const auto is_chosen = [chosen](int i) { return (chosen >> i & 1U) != 0; };
  const float sum = sum_of<kEach>([&](int i) { return is_chosen(i) ? scores.scores[i] : 0.0F; });
  const float factor = call.rule.scale / (call.rule.normalize ? sum + 1e-20F : 1.0F);
  std::int32_t* const experts = call.experts + token * call.rule.active;
  float* const weights = call.weights + token * call.rule.active;
  int before = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned lanes = __ballot_sync(kAllLanes, is_chosen(i));
    if (is_chosen(i)) {
      const int k = before + __popc(lanes & ((1U << lane_here()) - 1U));
      experts[k] = expert_of(i);
      weights[k] = scores.scores[i] * factor;
    }
    before += __popc(lanes);
  }
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) route_kernel(RouteCall call) {
  overlap();
  wait_for_earlier();
  const int count = static_cast<int>(call.rule.count);
  for (Dim token = static_cast<Dim>(blockIdx.x) * kWarps + warp_here(); token < call.tokens;
       token += static_cast<Dim>(gridDim.x) * kWarps) {
    const TokenScores<kEach> scores(call.rule, call.logits + token * count);
    float choice[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      choice[i] = scores.scores[i];
      if (call.bias != nullptr && expert_of(i) < count) choice[i] += call.bias[expert_of(i)];
      if (isnan(choice[i])) choice[i] = -INFINITY;
    }
    if (call.rule.in_turn) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        choice[i] = call.rule.is_turn_of(token, expert_of(i)) ? 1.0F : 0.0F;
      }
    } else {
      keep_groups(call.rule, choice);
    }
    write_chosen(call, token, scores,
                 mark_largest(choice, count, static_cast<int>(call.rule.active)));
  }
}

struct RouteBackwardCall {
  RouterRule rule;
  RouterLosses losses;
  Dim tokens;
  Dim sample_tokens;  ///< here
  const float* logits;
  const std::int32_t* experts;
  const float* dweights;
  const float* statistics;  ///< null: there are no losses
  const StepState* state;
  float* dlogits;
};

/// Factors of the two losses' gradients.
struct LossFactors {
  float balance = 0;
  float z = 0;
  __device__ explicit LossFactors(const RouteBackwardCall& call) {
    if (call.statistics == nullptr) return;
    const auto tokens = static_cast<float>(call.losses.tokens);
    const float scale = static_cast<float>(call.losses.samples) *
                        call.state->input.inverse_samples * call.state->loss_scale;
    balance = scale * call.losses.balance * static_cast<float>(call.rule.count) /
              (static_cast<float>(call.rule.active) * tokens * tokens);
    z = scale * call.losses.z * 2 / tokens;
  }
};

/// Sets a lane's gradients of a token's scores by those of its weights.
template <int kEach>
__device__ void weights_to_scores(const RouteBackwardCall& call, Dim token,
                                  const TokenScores<kEach>& scores, float (&dscores)[kEach]) {
  const Dim active = call.rule.active;
  unsigned chosen = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) dscores[i] = 0;
  for (Dim k = token * active; k < (token + 1) * active; ++k) {
    const int expert = call.experts[k];
    const float dweight = call.dweights[k];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert != expert_of(i)) continue;
      dscores[i] = dweight;
      chosen |= 1U << i;
    }
  }
  const auto share = [&](int i) { return (chosen >> i & 1U) != 0 ? scores.scores[i] : 0.0F; };
  const float sum = sum_of<kEach>(share) + 1e-20F;
  const float dot = sum_of<kEach>([&](int i) { return dscores[i] * share(i); });
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if ((chosen >> i & 1U) == 0) continue;
    if (call.rule.normalize) dscores[i] = (dscores[i] - dot / sum) / sum;
    dscores[i] *= call.rule.scale;
  }
}

/// Adds the gradients of a token's scores by their shares in a sample, which balance weighs.
template <int kEach>
__device__ void balance_to_scores(const RouteBackwardCall& call, Dim token, float factor,
                                  const TokenScores<kEach>& scores, float (&dscores)[kEach]) {
  const float* const counts =
      call.statistics + token / call.sample_tokens * router_statistics_width(call.rule.count);
  float of_experts[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    of_experts[i] = expert_of(i) < call.rule.count ? counts[expert_of(i)] : 0.0F;
  }
  const float dot =
      sum_of<kEach>([&](int i) { return of_experts[i] * scores.scores[i] / scores.sum; });
  const bool of_share = call.rule.score == RouterScore::sigmoid;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    dscores[i] += factor * (of_share ? (of_experts[i] - dot) / scores.sum : of_experts[i]);
  }
}

/// Writes a token's gradients of logits by those of its scores and of log(Z)^2.
template <int kEach>
__device__ void write_dlogits(const RouteBackwardCall& call, Dim token, float z,
                              const TokenScores<kEach>& scores, const float (&dscores)[kEach]) {
  float* const dlogits = call.dlogits + token * call.rule.count;
  const bool is_softmax = call.rule.score == RouterScore::softmax;
  const float dot = sum_of<kEach>([&](int i) { return dscores[i] * scores.scores[i]; });
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (expert_of(i) >= call.rule.count) continue;
    const float score = scores.scores[i];
    const float by_z = z * scores.log_sum;
    dlogits[expert_of(i)] = is_softmax ? score * (dscores[i] - dot + by_z)
                                       : dscores[i] * score * (1.0F - score) +
                                             by_z * expf(scores.logits[i] - scores.log_sum);
  }
}

template <int kEach>
__global__ void __launch_bounds__(kThreads) route_backward_kernel(RouteBackwardCall call) {
  overlap();
  wait_for_earlier();
  const LossFactors factors(call);
  for (Dim token = static_cast<Dim>(blockIdx.x) * kWarps + warp_here(); token < call.tokens;
       token += static_cast<Dim>(gridDim.x) * kWarps) {
    const TokenScores<kEach> scores(call.rule, call.logits + token * call.rule.count);
    float dscores[kEach];
    weights_to_scores(call, token, scores, dscores);
    if (factors.balance != 0) balance_to_scores(call, token, factors.balance, scores, dscores);
    write_dlogits(call, token, factors.z, scores, dscores);
  }
}

}  // namespace

void route(Context& ctx, const RouterRule& rule, CView logits, CView bias, View experts,
           View weights) {
  constexpr const char* kName = "route";
  const RouteCall call = {.rule = rule,
                          .tokens = leading(logits.shape()),
                          .logits = logits.data<float>(),
                          .bias = optional_data<float>(bias),
                          .experts = experts.data<std::int32_t>(),
                          .weights = weights.data<float>()};
  if (call.tokens == 0) return;
  with_lanes(rule, kName, [&]<int kEach>(std::integral_constant<int, kEach>) {
    launch_waiting(ctx, kName, call.tokens, route_kernel<kEach>, {blocks_of(call.tokens), kThreads},
                   call);
  });
}

void route_backward(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                    const RouterGradient& gradient, View dlogits) {
  constexpr const char* kName = "route_backward";
  const bool any = gradient.losses.any();
  const Dim tokens = leading(logits.shape());
  const Dim samples = any ? leading(gradient.statistics.shape()) : 1;
  const RouteBackwardCall call = {.rule = rule,
                                  .losses = gradient.losses,
                                  .tokens = tokens,
                                  .sample_tokens = std::max<Dim>(1, tokens / samples),
                                  .logits = logits.data<float>(),
                                  .experts = experts.data<std::int32_t>(),
                                  .dweights = gradient.dweights.data<float>(),
                                  .statistics = any ? gradient.statistics.data<float>() : nullptr,
                                  .state = gradient.state,
                                  .dlogits = dlogits.data<float>()};
  if (tokens == 0) return;
  with_lanes(rule, kName, [&]<int kEach>(std::integral_constant<int, kEach>) {
    launch_waiting(ctx, kName, tokens, route_backward_kernel<kEach>, {blocks_of(tokens), kThreads},
                   call);
  });
}

}  // namespace hyperslab::ops::cuda
