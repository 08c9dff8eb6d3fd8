// SPDX-License-Identifier: Apache-2.0
#include "attention_appended.hpp"
#include "attention_cached.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = kCachedWarps;
constexpr Dim kMaxHeadWidth = 1024;
constexpr const char* kName = "attention_cached_forward";

/// Elements from i on of the new rows of both caches.
template <class T>
struct Append {
  static constexpr int kWidth = kVector<T>;
  CachedCall<T> call;
  Dim width;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / width;
    const Dim column = i - row * width;
    const Dim sample = row / call.new_tokens;
    const Dim token = row - sample * call.new_tokens;
    const T* from = call.qkv + row * call.packed + call.heads * call.head_width + column;
    const Dim to = (sample * call.max_tokens + call.past.get() + token) * width + column;
    *reinterpret_cast<Vec<T, N>*>(call.key_cache + to) = load_raw<N>(from);
    *reinterpret_cast<Vec<T, N>*>(call.value_cache + to) = load_raw<N>(from + width);
  }
};

/// One warp's part of a query's attention: its columns are lane, lane + 32, ... in shared memory.
struct WarpSum {
  OnlineSum<false> sum;
  float* values;
};

/// Adds kKeysAtOnce keys from `key` on, kWarps apart.
template <class T>
__device__ void add_keys(const float* q, const CachedHead<T>& head, Dim key, WarpSum& part) {
  float score[kKeysAtOnce];
#pragma unroll
  for (int k = 0; k < kKeysAtOnce; ++k) {
    const Dim j = key + k * kWarps;
    float dot = 0;
    for (Dim c = threadIdx.x; j < head.end && c < head.width; c += 32) {
      dot += q[c] * to_real(head.keys[j * head.row + c]);
    }
    score[k] = j < head.end ? head.capped(warp_sum(dot)) : -INFINITY;
  }
  const float before = part.sum.top;
  part.sum.add(score);
  const float shrink = before == part.sum.top ? 1.0F : expf(before - part.sum.top);
  float weight[kKeysAtOnce];
#pragma unroll
  for (int k = 0; k < kKeysAtOnce; ++k) weight[k] = expf(score[k] - part.sum.top);
  for (Dim c = threadIdx.x; c < head.width; c += 32) {
    float value = part.values[c] * shrink;
#pragma unroll
    for (int k = 0; k < kKeysAtOnce; ++k) {
      const Dim j = key + k * kWarps;
      if (j < head.end) value += weight[k] * to_real(head.values[j * head.row + c]);
    }
    part.values[c] = value;
  }
}

/// Block (new token, head, sample); kWarps warps. Shared: q, then the values of every warp.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) attend_kernel(CachedCall<T> call) {
  extern __shared__ float shared[];
  overlap();
  wait_for_earlier();
  __shared__ SoftmaxScratch scratch;
  const Dim D = call.head_width;
  const Dim token = blockIdx.x;
  const Dim head = blockIdx.y;
  const Dim sample = blockIdx.z;
  const Dim row = call.kv_heads * D;
  const Dim kv_head = head / (call.heads / call.kv_heads);
  const Dim cache = sample * call.max_tokens * row + kv_head * D;
  const Dim query = sample * call.new_tokens + token;
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  WarpSum part = {{}, shared + (threadIdx.y + 1) * D};
  for (Dim c = thread; c < D; c += 32 * kWarps) {
    shared[c] = call.scale * to_real(call.qkv[query * call.packed + head * D + c]);
  }
  for (Dim c = threadIdx.x; c < D; c += 32) part.values[c] = 0;
  __syncthreads();
  const Dim end = call.end_of(token);
  const CachedHead<T> cached = {
      call.key_cache + cache, call.value_cache + cache, row, D, end, call.softcap};
  for (Dim key = call.begin_of(token) + threadIdx.y; key < end; key += kWarps * kKeysAtOnce) {
    add_keys(shared, cached, key, part);
  }
  if (threadIdx.x == 0) {
    scratch.top[threadIdx.y] = part.sum.top;
    scratch.sum[threadIdx.y] = part.sum.sum;
  }
  __syncthreads();
  OnlineSum<false> total;
  for (int warp = 0; warp < kWarps; ++warp) total.merge(scratch.top[warp], scratch.sum[warp]);
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[head]), 1.0F);
  for (Dim c = thread; c < D; c += 32 * kWarps) {
    float value = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      if (scratch.sum[warp] == 0) continue;  // a warp without keys
      value += expf(scratch.top[warp] - total.top) * shared[(warp + 1) * D + c];
    }
    call.out[(query * call.heads + head) * D + c] = from_real<T>(value / total.sum);
  }
}

/// Block (new token and split, head, sample), of heads that are kLanes * 16 bytes wide.
template <int kLanes, class T>
__global__ void __launch_bounds__(32 * kWarps) attend_split_kernel(CachedCall<T> call) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  constexpr int kTeams = kWarps * 32 / kLanes;
  __shared__ float values[kTeams][D];
  __shared__ float tops[kTeams];
  __shared__ float sums[kTeams];
  overlap();
  wait_for_earlier();
  const Dim token = blockIdx.x / call.splits;
  const Dim split = blockIdx.x - token * call.splits;
  const Dim head = blockIdx.y;
  const Dim sample = blockIdx.z;
  const Dim query = sample * call.new_tokens + token;
  const Dim end = call.end_of(token);
  const Dim share = call.keys_of_split(end - call.begin_of(token));
  const Dim begin = call.begin_of(token) + split * share;
  if (begin >= end) return;
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  float q[N];
  load<N>(call.qkv + query * call.packed + head * D + thread % kLanes * N, q);
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] *= call.scale;
  const Dim row = call.kv_heads * D;
  const Dim cache = sample * call.max_tokens * row + head / (call.heads / call.kv_heads) * D;
  const CachedHead<T> cached = {call.key_cache + cache,
                                call.value_cache + cache,
                                row,
                                D,
                                min(end, begin + share),
                                call.softcap};
  const TeamSum<N> part = attend_team<kLanes, 32 * kWarps>(q, cached, begin, thread);
  const unsigned team = thread / kLanes;
#pragma unroll
  for (int i = 0; i < N; ++i) values[team][thread % kLanes * N + i] = part.values[i];
  if (thread % kLanes == 0) {
    tops[team] = part.top;
    sums[team] = part.sum;
  }
  __syncthreads();
  OnlineSum<false> total;
  for (int i = 0; i < kTeams; ++i) {
    if (sums[i] > 0) total.merge(tops[i], sums[i]);  // a team without keys has none
  }
  if (call.sinks != nullptr && call.splits == 1) total.merge(to_real(call.sinks[head]), 1.0F);
  for (unsigned c = thread; c < D; c += 32 * kWarps) {
    float value = 0;
    for (int i = 0; i < kTeams; ++i) {
      if (sums[i] > 0) value += expf(tops[i] - total.top) * values[i][c];
    }
    if (call.splits == 1) {
      call.out[(query * call.heads + head) * D + c] = from_real<T>(value / total.sum);
    } else {
      float* partial = call.partial + ((query * call.heads + head) * call.splits + split) * (D + 2);
      partial[c] = value;
      if (c == 0) {
        partial[D] = total.top;
        partial[D + 1] = total.sum;
      }
    }
  }
}

/// Block (new token, head, sample): the splits that have keys, in their order.
template <class T>
__global__ void __launch_bounds__(128) merge_splits_kernel(CachedCall<T> call) {
  overlap();
  wait_for_earlier();
  const Dim D = call.head_width;
  const Dim query = blockIdx.z * call.new_tokens + blockIdx.x;
  const Dim index = query * call.heads + blockIdx.y;
  const Dim keys = call.end_of(blockIdx.x) - call.begin_of(blockIdx.x);
  const Dim share = call.keys_of_split(keys);
  const Dim splits = (keys + share - 1) / share;
  const float* partial = call.partial + index * call.splits * (D + 2);
  OnlineSum<false> total;
  for (Dim i = 0; i < splits; ++i) {
    total.merge(partial[i * (D + 2) + D], partial[i * (D + 2) + D + 1]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[blockIdx.y]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += blockDim.x) {
    float value = 0;
    for (Dim i = 0; i < splits; ++i) {
      value += expf(partial[i * (D + 2) + D] - total.top) * partial[i * (D + 2) + c];
    }
    call.out[index * D + c] = from_real<T>(value / total.sum);
  }
}

template <class T>
dim3 blocks_of(const CachedCall<T>& call, Dim splits, Dim B) {
  return {static_cast<unsigned>(call.new_tokens * splits), static_cast<unsigned>(call.heads),
          static_cast<unsigned>(B)};
}

template <int kLanes, class T>
void launch_splits(Context& ctx, const CachedCall<T>& call, Dim B) {
  launch_overlapping(ctx, kName, attend_split_kernel<kLanes, T>,
                     {blocks_of(call, call.splits, B), dim3(32, kWarps)}, call);
  if (call.splits == 1) return;
  launch_overlapping(ctx, kName, merge_splits_kernel<T>, {blocks_of(call, 1, B), 128}, call);
}

/// Heads of a power of two of 16 bytes, up to a warp's; false: of another width, or not aligned.
template <class T>
bool attend_in_splits(Context& ctx, const CachedCall<T>& call, Dim B) {
  if (!aligned(call.qkv, call.key_cache, call.value_cache)) return false;
  switch (call.head_width % kVector<T> == 0 ? call.head_width / kVector<T> : 0) {
    case 4: launch_splits<4>(ctx, call, B); return true;
    case 8: launch_splits<8>(ctx, call, B); return true;
    case 16: launch_splits<16>(ctx, call, B); return true;
    case 32: launch_splits<32>(ctx, call, B); return true;
    default: return false;
  }
}

template <class T>
void attend(Context& ctx, const CachedCall<T>& call, Dim B) {
  if (attend_in_splits(ctx, call, B)) return;
  const std::size_t shared =
      static_cast<std::size_t>((kWarps + 1) * call.head_width) * sizeof(float);
  launch_overlapping(ctx, kName, attend_kernel<T>,
                     {blocks_of(call, 1, B), dim3(32, kWarps), shared}, call);
}

}  // namespace

void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView qkv, const KeyValueCache& cache, View out) {
  require(layout.head_width <= kMaxHeadWidth,
          "attention_cached_forward layout: heads on a GPU are at most 1024 wide");
  if (out.numel() == 0) return;
  with_element(qkv.dtype(), kName, [&]<class T>(T) {
    const Dim B = qkv.shape()[0];
    const Dim new_tokens = qkv.shape()[1];
    const CachedCall<T> call = cached_call<T>(ctx, kName, layout, scores, qkv, cache, out);
    const Dim width = layout.kv_heads * layout.head_width;
    const bool vectors =
        layout.head_width % kVector<T> == 0 && aligned(call.qkv, call.key_cache, call.value_cache);
    for_each(ctx, kName, B * new_tokens, B * new_tokens * width, vectors, Append<T>{call, width});
    if (suits_attention_appended(layout, scores, qkv, cache, out)) {
      return attention_appended(ctx, kName, layout, scores, qkv, cache, out);
    }
    attend(ctx, call, B);
  });
}

}  // namespace hyperslab::ops::cuda
