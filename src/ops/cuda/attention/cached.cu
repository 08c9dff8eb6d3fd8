// SPDX-License-Identifier: Apache-2.0
#include "cached.cuh"

// Attention on a cache: the choice of a kernel, the kernel that turns queries and keys and writes
// keys and values to the cache, and the one for heads of any width.

namespace hyperslab::ops::cuda {
namespace {

constexpr Dim kMaxHeadWidth = 1024;

/// Columns from element i of all new rows on: queries are turned in place, keys turned into the
/// cache, values copied.
template <class T>
struct Place {
  static constexpr int kWidth = kVector<T>;
  CachedCall<T> call;
  const float* cosines;  ///< (positions, half), or null without rope
  const float* sines;
  Dim half;

  /// Columns `low` and `low + half` of a head at a position.
  template <int N>
  __device__ void turn(const T* low, Dim position, Dim column, T* to) const {
    float a[N];
    float b[N];
    float cosine[N];
    float sine[N];
    load<N>(low, a);
    load<N>(low + half, b);
    load<N>(cosines + position * half + column, cosine);
    load<N>(sines + position * half + column, sine);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float before = a[k];
      a[k] = before * cosine[k] - b[k] * sine[k];
      b[k] = b[k] * cosine[k] + before * sine[k];
    }
    store<N>(to, a);
    store<N>(to + half, b);
  }

  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / call.packed();
    const Dim offset = i - row * call.packed();
    const Dim head = offset / call.head_width;
    const Dim column = offset - head * call.head_width;
    const bool is_value = head >= call.heads + call.kv_heads;
    const bool turns = cosines != nullptr && !is_value && column < 2 * half;
    if (turns && column >= half) return;  // with its other column
    const bool is_query = head < call.heads;
    if (is_query && !turns) return;
    const Dim sample = row / call.new_tokens;
    const Dim token = call.past.of(sample) + row - sample * call.new_tokens;
    T* from = call.qkv + i;
    T* to = from;
    if (!is_query) {
      const Dim kept = call.row_of(sample, token);
      if (kept < 0) return;
      const Dim kv_head = head - call.heads - (is_value ? call.kv_heads : 0);
      to = (is_value ? call.values : call.keys) + kept + kv_head * call.head_width + column;
    }
    if (turns) return turn<N>(from, token, column, to);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = from[k];
  }
};

/// Heads of any width. Block (new token, head, sample), whose warps take keys in turn; columns of a
/// warp are lane, lane + 32, ... Shared: q, then the values of every warp.
template <class T>
__global__ void __launch_bounds__(kCachedThreads) attend_any_width_kernel(CachedCall<T> call) {
  extern __shared__ float shared[];
  __shared__ float tops[kCachedWarps];
  __shared__ float sums[kCachedWarps];
  overlap();
  wait_for_earlier();
  const Dim D = call.head_width;
  const Dim token = blockIdx.x;
  const Dim head = blockIdx.y;
  const Dim sample = blockIdx.z;
  const Dim query = sample * call.new_tokens + token;
  const Dim column = head / call.group() * D;
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  float* mine = shared + (warp + 1) * D;
  for (Dim c = threadIdx.x; c < D; c += kCachedThreads) {
    shared[c] = call.scale * to_real(call.qkv[query * call.packed() + head * D + c]);
  }
  for (Dim c = lane; c < D; c += 32) mine[c] = 0;
  __syncthreads();
  const Dim end = call.end_of(sample, token);
  float top = -INFINITY;
  float sum = 0;
  for (Dim j = call.begin_of(end) + warp; j < end; j += kCachedWarps) {
    const Dim kept = call.row_of(sample, j);
    if (kept < 0) continue;
    const Dim row = kept + column;
    float dot = 0;
    for (Dim c = lane; c < D; c += 32) dot += shared[c] * to_real(call.keys[row + c]);
    const float score = call.score(warp_sum(dot));
    const float larger = fmaxf(top, score);
    const float shrink = expf(top - larger);
    const float weight = expf(score - larger);
    top = larger;
    sum = sum * shrink + weight;
    for (Dim c = lane; c < D; c += 32) {
      mine[c] = mine[c] * shrink + weight * to_real(call.values[row + c]);
    }
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  OnlineSum<false> total;
  for (int i = 0; i < kCachedWarps; ++i) {
    if (sums[i] > 0) total.merge(tops[i], sums[i]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[head]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += kCachedThreads) {
    float value = 0;
    for (int i = 0; i < kCachedWarps; ++i) {
      if (sums[i] > 0) value += expf(tops[i] - total.top) * shared[(i + 1) * D + c];
    }
    call.out[(query * call.heads + head) * D + c] =
        from_real<T>(total.sum == 0 ? 0.0F : value / total.sum);
  }
}

}  // namespace

void place_new_tokens(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                      const RotaryTables& tables, View qkv, const KeyValueCache& cache, View out) {
  with_element(qkv.dtype(), kCachedName, [&]<class T>(T) {
    const Place<T> op = {cached_call<T>(ctx, kCachedName, layout, scores, qkv, cache, out),
                         optional_data<float>(tables.cosines), optional_data<float>(tables.sines),
                         tables.cosines ? tables.cosines.shape()[1] : 0};
    const bool vectors = layout.head_width % kVector<T> == 0 && op.half % kVector<T> == 0 &&
                         aligned(op.call.qkv, op.call.keys, op.call.values, op.cosines, op.sines);
    for_each(ctx, kCachedName, qkv.rows(), qkv.numel(), vectors, op);
  });
}

void attention_cached_of_any_width(Context& ctx, const HeadLayout& layout,
                                   const AttentionScores& scores, const RotaryTables& tables,
                                   View qkv, const KeyValueCache& cache, View out) {
  place_new_tokens(ctx, layout, scores, tables, qkv, cache, out);
  with_element(qkv.dtype(), kCachedName, [&]<class T>(T) {
    const auto call = cached_call<T>(ctx, kCachedName, layout, scores, qkv, cache, out);
    const std::size_t shared =
        static_cast<std::size_t>((kCachedWarps + 1) * call.head_width) * sizeof(float);
    launch_overlapping(
        ctx, kCachedName, attend_any_width_kernel<T>,
        {blocks_of(call.new_tokens, call.heads, qkv.shape()[0]), kCachedThreads, shared}, call);
  });
}

void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              const RotaryTables& tables, View qkv, const KeyValueCache& cache,
                              View out) {
  require(layout.head_width <= kMaxHeadWidth,
          "attention_cached_forward layout: heads on a GPU are at most 1024 wide");
  if (out.numel() == 0) return;
  choose(kAttentionCached, CacheProblem{layout, scores, tables, qkv, cache, out},
         features_of_kernels())
      .launch(ctx, layout, scores, tables, qkv, cache, out);
}

}  // namespace hyperslab::ops::cuda
