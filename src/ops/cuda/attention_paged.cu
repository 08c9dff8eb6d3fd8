// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "attention_appended.hpp"
#include "attention_paged.cuh"

// Attention on a cache in pages, whose samples differ in length: one kernel turns queries and keys
// and writes keys and values to their pages, others attend.

namespace hyperslab::ops::cuda {
namespace {

constexpr Dim kMaxHeadWidth = 1024;

/// Columns from element i of all new rows on: queries are turned in place, keys turned into their
/// page, values copied.
template <class T>
struct Place {
  static constexpr int kWidth = kVector<T>;
  PagedCall<T> call;
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
      if (call.page_of(sample, token) < 0) return;
      const Dim kv_head = head - call.heads - (is_value ? call.kv_heads : 0);
      to = (is_value ? call.values : call.keys) + call.row_of(sample, token) +
           kv_head * call.head_width + column;
    }
    if (turns) return turn<N>(from, token, column, to);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = from[k];
  }
};

/// Heads of any width. Block (new token, head, sample), whose warps take keys in turn; columns of a
/// warp are lane, lane + 32, ... Shared: q, then the values of every warp.
template <class T>
__global__ void __launch_bounds__(kPagedThreads) attend_any_pages_kernel(PagedCall<T> call) {
  extern __shared__ float shared[];
  __shared__ float tops[kPagedWarps];
  __shared__ float sums[kPagedWarps];
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
  for (Dim c = threadIdx.x; c < D; c += kPagedThreads) {
    shared[c] = call.scale * to_real(call.qkv[query * call.packed() + head * D + c]);
  }
  for (Dim c = lane; c < D; c += 32) mine[c] = 0;
  __syncthreads();
  const Dim end = call.end_of(sample, token);
  float top = -INFINITY;
  float sum = 0;
  for (Dim j = call.begin_of(end) + warp; j < end; j += kPagedWarps) {
    if (call.page_of(sample, j) < 0) continue;
    const Dim row = call.row_of(sample, j) + column;
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
  for (int i = 0; i < kPagedWarps; ++i) {
    if (sums[i] > 0) total.merge(tops[i], sums[i]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[head]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += kPagedThreads) {
    float value = 0;
    for (int i = 0; i < kPagedWarps; ++i) {
      if (sums[i] > 0) value += expf(tops[i] - total.top) * shared[(i + 1) * D + c];
    }
    call.out[(query * call.heads + head) * D + c] =
        from_real<T>(total.sum == 0 ? 0.0F : value / total.sum);
  }
}

template <class T>
void attend(Context& ctx, const PagedCall<T>& call, Dim B) {
  if (attend_in_tiles(ctx, call, B)) return;
  const std::size_t shared =
      static_cast<std::size_t>((kPagedWarps + 1) * call.head_width) * sizeof(float);
  launch_overlapping(ctx, kPagedName, attend_any_pages_kernel<T>,
                     {blocks_of(call.new_tokens, call.heads, B), kPagedThreads, shared}, call);
}

template <class T>
void place(Context& ctx, const PagedCall<T>& call, const RotaryTables& tables, Dim rows) {
  const Place<T> op = {call, optional_data<float>(tables.cosines),
                       optional_data<float>(tables.sines),
                       tables.cosines ? tables.cosines.shape()[1] : 0};
  const bool vectors = call.head_width % kVector<T> == 0 && op.half % kVector<T> == 0 &&
                       aligned(call.qkv, call.keys, call.values, op.cosines, op.sines);
  const Dim packed = (call.heads + 2 * call.kv_heads) * call.head_width;
  for_each(ctx, kPagedName, rows, rows * packed, vectors, op);
}

}  // namespace

void rope_attention_paged_forward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  View qkv, const KeyValueCache& cache, View out) {
  require(layout.head_width <= kMaxHeadWidth,
          "rope_attention_paged_forward layout: heads on a GPU are at most 1024 wide");
  if (out.numel() == 0) return;
  with_element(qkv.dtype(), kPagedName, [&]<class T>(T) {
    const auto [B, new_tokens, packed] = qkv.dims<3>(kPagedName);
    const PagedCall<T> call = {
        layout.heads,
        layout.kv_heads,
        layout.head_width,
        new_tokens,
        live_position(cache.past),
        scores.mask.window,
        static_cast<float>(scores.softcap),
        static_cast<float>(scores.scale_of(layout)),
        scores.sinks.logits ? scores.sinks.logits.data<T>() : nullptr,
        qkv.data<T>(),
        cache.keys.data<T>(),
        cache.values.data<T>(),
        cache.pages.data<std::int32_t>(),
        cache.pages.shape()[1],
        std::countr_zero(static_cast<std::uint64_t>(cache.keys.shape()[1])),
        out.data<T>(),
        1,
        static_cast<float*>(ctx.workspace(kPagedName, attention_paged_workspace(layout)))};
    place(ctx, call, tables, B * new_tokens);
    if (suits_attention_appended(layout, scores, qkv, cache, out)) {
      return attention_appended(ctx, kPagedName, layout, scores, qkv, cache, out);
    }
    attend(ctx, call, B);
  });
}

}  // namespace hyperslab::ops::cuda
