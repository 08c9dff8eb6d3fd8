// SPDX-License-Identifier: Apache-2.0
// Statistics of a router: blocks leave the sums of their part of a sample, which are added in
// order.
#include "router.cuh"

namespace hyperslab::ops::cuda {
namespace {

using namespace router;

struct StatisticsCall {
  RouterRule rule;
  int sample_tokens;
  int parts;  ///< a sample has them
  const float* logits;
  const std::int32_t* experts;
  float* partial;  ///< (samples, parts, width)
  float* statistics;
  Dim samples;
};

/// Sums of the tokens of a warp, its own experts' in a lane.
template <int kEach>
struct WarpSums {
  float shares[kEach] = {};
  float squares = 0;  ///< log(Z)^2, the same in all lanes
  float entropy = 0;  ///< a lane has its experts' part

  __device__ void add(const TokenScores<kEach>& token) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float share = token.scores[i] / token.sum;
      shares[i] += share;
      if (share > 0) entropy -= share * logf(share);
    }
    squares += token.log_sum * token.log_sum;
  }
};

/// A block's sums in shared memory.
struct BlockSums {
  float squares[kWarps];
  float entropies[kWarps];
};

/// Adds the warps' sums in order and writes them. shares: (kWarps, experts); counts: (experts).
__device__ inline void write_part(const StatisticsCall& call, const BlockSums& sums,
                                  const float* shares, const int* counts) {
  const int experts = static_cast<int>(call.rule.count);
  float* const out = call.partial + (static_cast<Dim>(blockIdx.y) * call.parts + blockIdx.x) *
                                        router_statistics_width(experts);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    float share = 0;
    for (int warp = 0; warp < kWarps; ++warp) share += shares[warp * experts + e];
    out[e] = static_cast<float>(counts[e]);
    out[experts + e] = share;
  }
  if (threadIdx.x != 0) return;
  float squares = 0;
  float entropy = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    squares += sums.squares[warp];
    entropy += sums.entropies[warp];
  }
  out[2 * experts] = squares;
  out[2 * experts + 1] = entropy;
}

/// Block (part, sample).
template <int kEach>
__global__ void __launch_bounds__(kThreads) router_statistics_kernel(StatisticsCall call) {
  extern __shared__ float shares[];
  __shared__ BlockSums sums;
  overlap();
  wait_for_earlier();
  const int experts = static_cast<int>(call.rule.count);
  const int active = static_cast<int>(call.rule.active);
  int* const counts = reinterpret_cast<int*>(shares + kWarps * experts);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * kRouterPart;
  const int end = min(first + kRouterPart, call.sample_tokens);
  const Dim before = static_cast<Dim>(blockIdx.y) * call.sample_tokens;
  WarpSums<kEach> own;
  for (int token = first + warp_here(); token < end; token += kWarps) {
    own.add(TokenScores<kEach>(call.rule, call.logits + (before + token) * experts));
    const std::int32_t* const taken = call.experts + (before + token) * active;
    for (int k = lane_here(); k < active; k += kLanes) atomicAdd(&counts[taken[k]], 1);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (expert_of(i) < experts) shares[warp_here() * experts + expert_of(i)] = own.shares[i];
  }
  own.entropy = warp_sum(own.entropy);
  if (lane_here() == 0) {
    sums.squares[warp_here()] = own.squares;
    sums.entropies[warp_here()] = own.entropy;
  }
  __syncthreads();
  write_part(call, sums, shares, counts);
}

/// Adds the parts of every sample.
struct RouterParts {
  static constexpr int kWidth = 1;
  const float* partial;
  float* statistics;
  Dim width;
  int parts;
  template <int N>
  __device__ void at(Dim i) const {
    const float* const first = partial + i / width * parts * width + i % width;
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += first[part * width];
    statistics[i] = sum;
  }
};

struct AddCall {
  Dim samples;  ///< groups of samples
  int experts;
  double factor;  ///< multiplies the balance
  double tokens;  ///< tokens of a sample
  const float* statistics;
  float* sums;
  float* loads;
};

/// One block. A thread has the loads of its experts.
__global__ void __launch_bounds__(kThreads) add_router_statistics_kernel(AddCall call) {
  __shared__ double scratch[32];
  overlap();
  wait_for_earlier();
  double balance = 0;
  double squares = 0;
  double entropy = 0;
  for (Dim b = 0; b < call.samples; ++b) {
    const float* const counts = call.statistics + b * router_statistics_width(call.experts);
    const float* const shares = counts + call.experts;
    double dot = 0;
    for (int e = static_cast<int>(threadIdx.x); e < call.experts; e += kThreads) {
      dot += static_cast<double>(counts[e]) * static_cast<double>(shares[e]);
      call.loads[e] += counts[e];
    }
    balance += call.factor * block_sum(dot, scratch);
    squares += static_cast<double>(shares[call.experts]) / call.tokens;
    entropy += static_cast<double>(shares[call.experts + 1]) / call.tokens;
  }
  if (threadIdx.x != 0) return;
  call.sums[kSumBalance] += static_cast<float>(balance);
  call.sums[kSumRouterZ] += static_cast<float>(squares);
  call.sums[kSumRouterEntropy] += static_cast<float>(entropy);
}

/// One block.
__global__ void __launch_bounds__(kThreads)
    update_router_bias_kernel(float rate, const float* loads, int experts, const StepState* state,
                              float* bias) {
  __shared__ double scratch[32];
  overlap();
  wait_for_earlier();
  if (state->skip != 0) return;
  double sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    sum += static_cast<double>(loads[e]);
  }
  const double mean = block_sum(sum, scratch) / experts;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    const double above = static_cast<double>(loads[e]) - mean;
    bias[e] -= rate * static_cast<float>((above > 0) - (above < 0));
  }
}

__global__ void __launch_bounds__(kThreads)
    publish_loads_kernel(const float* loads, int count, const StepState* state, float* ring) {
  overlap();
  wait_for_earlier();
  float* const to = ring + state->input.step % kResultRing * count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) to[i] = loads[i];
}

}  // namespace

void router_statistics(Context& ctx, const RouterRule& rule, CView logits, CView experts,
                       View statistics) {
  constexpr const char* kName = "router_statistics";
  const Dim samples = leading(statistics.shape());
  const Dim sample_tokens = leading(logits.shape()) / samples;
  const Dim parts = router_parts(sample_tokens);
  require(samples < 65536, "router_statistics: more samples than a GPU counts at once");
  auto* const partial = static_cast<float*>(
      ctx.workspace(kName, router_statistics_workspace(samples, sample_tokens, rule.count)));
  const StatisticsCall call = {.rule = rule,
                               .sample_tokens = static_cast<int>(sample_tokens),
                               .parts = static_cast<int>(parts),
                               .logits = logits.data<float>(),
                               .experts = experts.data<std::int32_t>(),
                               .partial = partial,
                               .statistics = statistics.data<float>(),
                               .samples = samples};
  const Grid grid = {{static_cast<unsigned>(parts), static_cast<unsigned>(samples)},
                     kThreads,
                     static_cast<std::size_t>((kWarps + 1) * rule.count) * sizeof(float)};
  with_lanes(rule, kName, [&]<int kEach>(std::integral_constant<int, kEach>) {
    if (parts > 0) {
      launch_waiting(ctx, kName, leading(logits.shape()), router_statistics_kernel<kEach>, grid,
                     call);
    }
  });
  const RouterParts add = {partial, call.statistics, router_statistics_width(rule.count),
                           call.parts};
  for_each(ctx, kName, leading(logits.shape()), statistics.numel(), false, add);
}

void add_router_statistics(Context& ctx, const RouterRule& rule, const RouterLosses& losses,
                           CView statistics, View sums, View loads) {
  const auto tokens = static_cast<double>(losses.tokens);
  const auto samples = static_cast<double>(losses.samples);
  const AddCall call = {.samples = leading(statistics.shape()),
                        .experts = static_cast<int>(rule.count),
                        .factor = samples * static_cast<double>(rule.count) /
                                  (static_cast<double>(rule.active) * tokens * tokens),
                        .tokens = tokens / samples,
                        .statistics = statistics.data<float>(),
                        .sums = sums.data<float>(),
                        .loads = loads.data<float>()};
  launch_waiting(ctx, "add_router_statistics", kOneBlock, add_router_statistics_kernel,
                 {1, kThreads}, call);
}

void update_router_bias(Context& ctx, float rate, CView loads, const StepState* state, View bias) {
  launch_waiting(ctx, "update_router_bias", kOneBlock, update_router_bias_kernel, {1, kThreads},
                 rate, loads.data<float>(), static_cast<int>(loads.numel()), state,
                 bias.data<float>());
}

void publish_loads(Context& ctx, CView loads, const StepState* state, View ring) {
  launch_waiting(ctx, "publish_loads", kOneBlock, publish_loads_kernel, {1, kThreads},
                 loads.data<float>(), static_cast<int>(loads.numel()), state, ring.data<float>());
}

}  // namespace hyperslab::ops::cuda
