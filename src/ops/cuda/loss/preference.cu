// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "hyperslab/core/batch.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kPairWarps = 16;  // a block takes a sample, and each warp of it a pair

struct PairsCall {
  Dim tokens;
  const float* scores;
  const float* references;  ///< the column
  Dim columns;
  const std::int32_t* targets;
  const std::int32_t* pairs;
  float beta;
  float* weights;
  PairSums* out;
};

/// The first token of a sample whose pair number is at least `number`; pairs ascend.
__device__ Dim first_of(const std::int32_t* pairs, Dim tokens, std::int32_t number) {
  Dim begin = 0;
  Dim end = tokens;
  while (begin < end) {
    const Dim middle = (begin + end) / 2;
    if (pairs[middle] < number) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__device__ double warp_total(double value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) value += __shfl_xor_sync(~0U, value, apart);
  return value;
}

/// log(1 + e^x) without overflow.
__device__ double softplus(double x) { return fmax(x, 0.0) + log1p(exp(-fabs(x))); }

/// The pair of rows [begin, end), by one warp: its weights are written, its sums added.
__device__ void one_pair(const PairsCall& call, Dim begin, Dim end, PairSums& sums) {
  const auto lane = static_cast<Dim>(threadIdx.x % 32);
  double margin = 0;
  float tokens = 0;
  for (Dim row = begin + lane; row < end; row += 32) {
    if (call.targets[row] == kIgnoredTarget) continue;
    const double loss = static_cast<double>(call.scores[row * kTargetScoreCount + kScoreLoss]);
    const double gain = -loss - static_cast<double>(call.references[row * call.columns]);
    margin += call.pairs[row] % 2 == 0 ? gain : -gain;
    tokens += 1;
  }
  margin = warp_total(margin);
  const auto beta = static_cast<double>(call.beta);
  const auto slope = static_cast<float>(beta / (1.0 + exp(beta * margin)));
  for (Dim row = begin + lane; row < end; row += 32) {
    if (call.targets[row] == kIgnoredTarget) continue;
    call.weights[row] = call.pairs[row] % 2 == 0 ? slope : -slope;
  }
  sums.tokens += tokens;
  if (lane != 0) return;
  sums.loss += softplus(-beta * margin);
  sums.pairs += 1;
  sums.preferred += margin > 0 ? 1.0F : 0.0F;
}

__global__ void __launch_bounds__(32 * kPairWarps) pairs_kernel(PairsCall call) {
  __shared__ double scratch[32];
  overlap();
  wait_for_earlier();
  const Dim first = blockIdx.x * call.tokens;
  const std::int32_t* pairs = call.pairs + first;
  for (Dim t = threadIdx.x; t < call.tokens; t += blockDim.x) call.weights[first + t] = 0.0F;
  __syncthreads();
  const Dim end = first_of(pairs, call.tokens, kNoPair);
  const std::int32_t count = end == 0 ? 0 : pairs[end - 1] / 2 + 1;
  PairSums sums = {};
  for (auto pair = static_cast<std::int32_t>(threadIdx.x / 32); pair < count; pair += kPairWarps) {
    const Dim begin = first_of(pairs, call.tokens, 2 * pair);
    const Dim past = first_of(pairs, call.tokens, 2 * pair + 2);
    if (begin < past) one_pair(call, first + begin, first + past, sums);
  }
  const double loss = block_sum(sums.loss, scratch);
  const double found = block_sum(static_cast<double>(sums.pairs), scratch);
  const double tokens = block_sum(static_cast<double>(sums.tokens), scratch);
  const double preferred = block_sum(static_cast<double>(sums.preferred), scratch);
  if (threadIdx.x != 0) return;
  call.out[blockIdx.x] = {loss, static_cast<float>(found), static_cast<float>(tokens),
                          static_cast<float>(preferred)};
}

/// Adds the samples in their order.
__global__ void sum_pairs_kernel(const PairSums* samples, Dim count, float* sums) {
  overlap();
  wait_for_earlier();
  double loss = 0;
  float pairs = 0;
  float tokens = 0;
  float preferred = 0;
  for (Dim i = 0; i < count; ++i) {
    loss += samples[i].loss;
    pairs += samples[i].pairs;
    tokens += samples[i].tokens;
    preferred += samples[i].preferred;
  }
  sums[kSumLoss] += static_cast<float>(loss);
  sums[kSumWeights] += pairs;
  sums[kSumTokens] += tokens;
  sums[kSumMarked] += preferred;
}

}  // namespace

void preference_loss(Context& ctx, const PairRows& rows, View weights, View sums) {
  constexpr const char* kName = "preference_loss";
  const auto [samples, tokens] = rows.pairs.dims<2>(kName);
  if (samples == 0 || tokens == 0) return;
  auto* of_samples = static_cast<PairSums*>(ctx.workspace(kName, preference_workspace(samples)));
  const PairsCall call = {tokens,
                          rows.scores.data<float>(),
                          rows.references.data<float>() + rows.reference,
                          rows.references.shape()[1],
                          rows.targets.data<std::int32_t>(),
                          rows.pairs.data<std::int32_t>(),
                          rows.beta,
                          weights.data<float>(),
                          of_samples};
  launch_waiting(ctx, kName, samples * tokens, pairs_kernel,
                 {static_cast<unsigned>(samples), 32 * kPairWarps}, call);
  launch_waiting(ctx, kName, samples, sum_pairs_kernel, {1, 1}, of_samples, samples,
                 sums.data<float>());
}

}  // namespace hyperslab::ops::cuda
