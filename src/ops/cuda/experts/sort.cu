// SPDX-License-Identifier: Apache-2.0
// A stable counting sort. A warp counts the pairs of its part by expert, sums over the parts give
// each part's first row of every expert, and the warps place their pairs in order.
#include "checks.hpp"
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "sort_by_expert";
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int kRounds = kSortPart / kLanes;
constexpr Dim kMostSortedExperts = 8192;  // counted in shared memory

struct SortCall {
  const std::int32_t* experts;
  int first_expert;
  std::int32_t* first_rows;
  std::int32_t* pairs;
  std::int32_t* rows;
  std::int32_t* counts;  ///< (experts, parts) pairs, then the pairs before a part
  std::int32_t* totals;  ///< (experts) pairs of all parts
  int count;             ///< pairs
  int most;              ///< rows that `pairs` holds
  int parts;
  int expert_count;
};

/// A lane's pairs of a part: those of a round are neighbors.
struct LanePairs {
  int first;
  int experts[kRounds];  ///< from the first on; -1: no pair is left, or its expert does not count

  __device__ explicit LanePairs(const SortCall& call)
      : first(static_cast<int>(blockIdx.x) * kSortPart + static_cast<int>(threadIdx.x)) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      experts[i] = pair(i) < call.count ? call.experts[pair(i)] - call.first_expert : -1;
      if (experts[i] >= call.expert_count) experts[i] = -1;
    }
  }
  [[nodiscard]] __device__ int pair(int round) const { return first + round * kLanes; }
};

/// Block: a warp of a part.
__global__ void __launch_bounds__(kLanes) sort_count_kernel(SortCall call) {
  extern __shared__ int counted[];
  overlap();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x);
  const LanePairs pairs(call);
  for (int e = lane; e < call.expert_count; e += kLanes) counted[e] = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (pairs.experts[i] >= 0) atomicAdd(&counted[pairs.experts[i]], 1);  // whole numbers
  }
  __syncwarp();
  for (int e = lane; e < call.expert_count; e += kLanes) {
    call.counts[static_cast<Dim>(e) * call.parts + blockIdx.x] = counted[e];
  }
}

/// The sum of the values of the lanes before this one; `sum` is that of all.
__device__ inline int lanes_before(int value, int& sum) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int through = value;
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, offset);
    if (lane >= offset) through += other;
  }
  sum = __shfl_sync(kAllLanes, through, kLanes - 1);
  return through - value;
}

/// Block: a warp of an expert.
__global__ void __launch_bounds__(kLanes) sort_parts_kernel(SortCall call) {
  overlap();
  wait_for_earlier();
  std::int32_t* const counts = call.counts + static_cast<Dim>(blockIdx.x) * call.parts;
  int before = 0;
  for (int first = 0; first < call.parts; first += kLanes) {
    const int part = first + static_cast<int>(threadIdx.x);
    const int count = part < call.parts ? counts[part] : 0;
    int sum = 0;
    const int within = lanes_before(count, sum);
    if (part < call.parts) counts[part] = before + within;
    before += sum;
  }
  if (threadIdx.x == 0) call.totals[blockIdx.x] = before;
}

/// One warp. More rows than fit end the kernel with an error.
__global__ void __launch_bounds__(kLanes) sort_experts_kernel(SortCall call) {
  overlap();
  wait_for_earlier();
  int before = 0;
  for (int first = 0; first < call.expert_count; first += kLanes) {
    const int e = first + static_cast<int>(threadIdx.x);
    const int count = e < call.expert_count ? call.totals[e] : 0;
    int sum = 0;
    const int within = lanes_before(count, sum);
    if (e < call.expert_count) call.first_rows[e] = before + within;
    before += sum;
  }
  if (before > call.most) __trap();
  if (threadIdx.x == 0) call.first_rows[call.expert_count] = before;
}

/// Block: a warp of a part. Lanes with an expert in common take its next rows in their order.
__global__ void __launch_bounds__(kLanes) sort_place_kernel(SortCall call) {
  extern __shared__ int next[];
  overlap();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x);
  const LanePairs pairs(call);
  for (int e = lane; e < call.expert_count; e += kLanes) {
    next[e] = call.first_rows[e] + call.counts[static_cast<Dim>(e) * call.parts + blockIdx.x];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int expert = pairs.experts[i];
    const unsigned same = __match_any_sync(kAllLanes, expert);
    const int rank = __popc(same & ((1U << lane) - 1U));
    const bool there = expert >= 0;
    const int first = there ? next[expert] : 0;
    __syncwarp();
    if (there && rank == 0) next[expert] = first + __popc(same);
    __syncwarp();
    if (pairs.pair(i) < call.count) call.rows[pairs.pair(i)] = there ? first + rank : -1;
    if (there) call.pairs[first + rank] = pairs.pair(i);
  }
}

}  // namespace

void sort_by_expert(Context& ctx, CView experts, Dim first_expert, View first_rows, View pairs,
                    View rows) {
  const Dim count = experts.numel();
  const Dim expert_count = first_rows.numel() - 1;
  require(expert_count <= kMostSortedExperts && count < Dim{1} << 30,
          "sort_by_expert: too many experts or pairs for a GPU");
  const Dim parts = sort_parts(count);
  auto* const counts = static_cast<std::int32_t*>(
      ctx.workspace(kName, sort_by_expert_workspace(count, expert_count)));
  const SortCall call = {.experts = experts.data<std::int32_t>(),
                         .first_expert = static_cast<int>(first_expert),
                         .first_rows = first_rows.data<std::int32_t>(),
                         .pairs = pairs.data<std::int32_t>(),
                         .rows = rows.data<std::int32_t>(),
                         .counts = counts,
                         .totals = counts + parts * expert_count,
                         .count = static_cast<int>(count),
                         .most = static_cast<int>(pairs.numel()),
                         .parts = static_cast<int>(parts),
                         .expert_count = static_cast<int>(expert_count)};
  const auto part_blocks = static_cast<unsigned>(parts);
  const auto expert_blocks = static_cast<unsigned>(expert_count);
  const auto shared = static_cast<std::size_t>(expert_count) * sizeof(int);
  const Dim tokens = leading(experts.shape());
  if (count > 0) {
    launch_waiting(ctx, kName, tokens, sort_count_kernel, {part_blocks, kLanes, shared}, call);
  }
  launch_waiting(ctx, kName, tokens, sort_parts_kernel, {expert_blocks, kLanes}, call);
  launch_waiting(ctx, kName, kOneBlock, sort_experts_kernel, {1, kLanes}, call);
  if (count > 0) {
    launch_waiting(ctx, kName, tokens, sort_place_kernel, {part_blocks, kLanes, shared}, call);
  }
}

}  // namespace hyperslab::ops::cuda
