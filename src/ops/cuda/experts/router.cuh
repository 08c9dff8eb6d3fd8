// SPDX-License-Identifier: Apache-2.0
// A token's scores in the lanes of a warp: lane l has the experts l, l + 32, l + 64 and so on.
#pragma once

#include <climits>

#include "checks.hpp"
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda::router {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;
inline constexpr int kWarps = 8;  // each at another token
inline constexpr int kThreads = kWarps * kLanes;
inline constexpr Dim kMostRouted = Dim{32} * kLanes;  // experts

[[nodiscard]] __device__ inline int lane_here() { return static_cast<int>(threadIdx.x) % kLanes; }
[[nodiscard]] __device__ inline int warp_here() { return static_cast<int>(threadIdx.x) / kLanes; }
[[nodiscard]] __device__ inline int expert_of(int i) { return lane_here() + kLanes * i; }

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
/// The sum over all experts of value(i), a lane's i-th.
template <int kEach, class Value>
__device__ float sum_of(const Value& value) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += value(i);
  return warp_sum(sum);
}

/// A token's scores, 0 of experts that are not there.
template <int kEach>
struct TokenScores {
  float logits[kEach];
  float scores[kEach];
  float sum;      ///< all scores: 1 with softmax
  float log_sum;  ///< log(Z)

  __device__ TokenScores(const RouterRule& rule, const float* of_token) {
    const int count = static_cast<int>(rule.count);
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      logits[i] = expert_of(i) < count ? of_token[expert_of(i)] : -INFINITY;
      largest = fmaxf(largest, logits[i]);
    }
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = expert_of(i) < count ? expf(logits[i] - largest) : 0.0F;
    }
    const float exponentials = sum_of<kEach>([this](int i) { return scores[i]; });
    log_sum = largest + logf(exponentials);
    sum = 1;
    if (rule.score == RouterScore::softmax) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) scores[i] /= exponentials;
      return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = expert_of(i) < count ? 1.0F / (1.0F + expf(-logits[i])) : 0.0F;
    }
    sum = sum_of<kEach>([this](int i) { return scores[i]; });
  }
};

/// Bit i of a lane's result: its i-th value is one of the `wanted` largest of the first `count`, of
/// equals the first. No value is NaN.
template <int kEach>
__device__ unsigned mark_largest(const float (&values)[kEach], int count, int wanted) {
  unsigned marked = 0;
  for (int k = 0; k < wanted; ++k) {
    float best = -INFINITY;
    int at = INT_MAX;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool is_free = expert_of(i) < count && (marked >> i & 1U) == 0;
      if (is_free && (values[i] > best || at == INT_MAX)) {
        best = values[i];
        at = expert_of(i);
      }
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, offset);
      const int other_at = __shfl_xor_sync(kAllLanes, at, offset);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
    if (at % kLanes == lane_here()) marked |= 1U << static_cast<unsigned>(at / kLanes);
  }
  return marked;
}

/// The largest value of a group, or the sum of the two largest.
template <int kEach>
__device__ float score_of_group(const float (&choice)[kEach], int first, int size, bool two) {
  float best = -INFINITY;
  float second = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (expert_of(i) < first || expert_of(i) >= first + size) continue;
    second = fmaxf(second, fminf(best, choice[i]));
    best = fmaxf(best, choice[i]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, offset);
    const float other_second = __shfl_xor_sync(kAllLanes, second, offset);
    second = fmaxf(fminf(best, other), fmaxf(second, other_second));
    best = fmaxf(best, other);
  }
  return two ? best + second : best;
}

/// Leaves the groups that a token may use as they are, and makes the others' choices impossible.
template <int kEach>
__device__ void keep_groups(const RouterRule& rule, float (&choice)[kEach]) {
  if (rule.active_groups == rule.groups) return;
  const int groups = static_cast<int>(rule.groups);
  const int size = static_cast<int>(rule.count / rule.groups);
  const bool two = rule.score == RouterScore::sigmoid && size > 1;
  float of_groups[kEach];  // lane l has the groups l, l + 32 and so on
#pragma unroll
  for (int i = 0; i < kEach; ++i) of_groups[i] = -INFINITY;
  for (int group = 0; group < groups; ++group) {
    const float value = score_of_group(choice, group * size, size, two);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (expert_of(i) == group) of_groups[i] = value;
    }
  }
  const unsigned kept = mark_largest(of_groups, groups, static_cast<int>(rule.active_groups));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = expert_of(i) / size;
    const unsigned of_owner = __shfl_sync(kAllLanes, kept, group % kLanes);
    if (group >= groups || (of_owner >> static_cast<unsigned>(group / kLanes) & 1U) == 0) {
      choice[i] = -INFINITY;
    }
  }
}

/// Calls body with the number of experts that a lane has, as a constant.
template <class Body>
void with_lanes(const RouterRule& rule, const char* op, Body&& body) {
  if (rule.count > kMostRouted) {
    throw Error(ExitCode::usage, std::string(op) + ": GPUs choose among at most 1,024 experts");
  }
  const Dim each = ceil_divide(rule.count, kLanes);
  if (each <= 1) return body(std::integral_constant<int, 1>());
  if (each <= 2) return body(std::integral_constant<int, 2>());
  if (each <= 4) return body(std::integral_constant<int, 4>());
  if (each <= 8) return body(std::integral_constant<int, 8>());
  body(std::integral_constant<int, 32>());
}

/// Blocks whose warps have a token each.
inline unsigned blocks_of(Dim tokens) {
  constexpr Dim kMostTokenBlocks = Dim{1} << 20;
  return static_cast<unsigned>(std::min(kMostTokenBlocks, ceil_divide(tokens, kWarps)));
}

}  // namespace hyperslab::ops::cuda::router
