// SPDX-License-Identifier: Apache-2.0
#include "kernels_common.cuh"
#include "kernels_softmax.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;       // that share the keys of one query
constexpr int kKeysAtOnce = 4;  // whose dot products are in flight in a warp
constexpr Dim kMaxHeadWidth = 1024;

template <class T>
struct CachedCall {
  Dim heads;
  Dim kv_heads;
  Dim head_width;
  Dim packed;
  Dim new_tokens;
  Dim past;
  Dim max_tokens;
  bool causal;
  float scale;
  const T* qkv;
  T* key_cache;
  T* value_cache;
  T* out;
};

/// Element i of the new rows of both caches.
template <class T>
struct Append {
  static constexpr int kWidth = 1;
  CachedCall<T> call;
  Dim width;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim row = i / width;
    const Dim column = i - row * width;
    const Dim sample = row / call.new_tokens;
    const Dim token = row - sample * call.new_tokens;
    const T* from = call.qkv + row * call.packed + call.heads * call.head_width + column;
    const Dim to = (sample * call.max_tokens + call.past + token) * width + column;
    call.key_cache[to] = from[0];
    call.value_cache[to] = from[width];
  }
};

/// One warp's part of a query's attention: its columns are lane, lane + 32, ... in shared memory.
struct WarpSum {
  OnlineSum<false> sum;
  float* values;
};

/// Keys and values of one head in the cache: rows `row` elements apart, of which those before `end`
/// are seen.
template <class T>
struct CachedHead {
  const T* keys;
  const T* values;
  Dim row;
  Dim width;
  Dim end;
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
    score[k] = j < head.end ? warp_sum(dot) : -INFINITY;
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
  const Dim end = call.past + (call.causal ? token + 1 : call.new_tokens);
  const CachedHead<T> cached = {call.key_cache + cache, call.value_cache + cache, row, D, end};
  for (Dim key = threadIdx.y; key < end; key += kWarps * kKeysAtOnce) {
    add_keys(shared, cached, key, part);
  }
  if (threadIdx.x == 0) {
    scratch.top[threadIdx.y] = part.sum.top;
    scratch.sum[threadIdx.y] = part.sum.sum;
  }
  __syncthreads();
  OnlineSum<false> total;
  for (int warp = 0; warp < kWarps; ++warp) total.merge(scratch.top[warp], scratch.sum[warp]);
  for (Dim c = thread; c < D; c += 32 * kWarps) {
    float value = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      if (scratch.sum[warp] == 0) continue;  // a warp without keys
      value += expf(scratch.top[warp] - total.top) * shared[(warp + 1) * D + c];
    }
    call.out[(query * call.heads + head) * D + c] = from_real<T>(value / total.sum);
  }
}

}  // namespace

void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask,
                              CView qkv, const KeyValueCache& cache, View out) {
  constexpr const char* kName = "attention_cached_forward";
  require(layout.head_width <= kMaxHeadWidth,
          "attention_cached_forward layout: heads on a GPU are at most 1024 wide");
  if (out.numel() == 0) return;
  with_element(qkv.dtype(), kName, [&]<class T>(T) {
    const auto [B, new_tokens, packed] = qkv.dims<3>("attention_cached_forward qkv");
    const CachedCall<T> call = {layout.heads,
                                layout.kv_heads,
                                layout.head_width,
                                packed,
                                new_tokens,
                                cache.past,
                                cache.keys.shape()[1],
                                mask.kind == AttentionMask::Kind::causal,
                                1.0F / std::sqrt(static_cast<float>(layout.head_width)),
                                qkv.data<T>(),
                                cache.keys.data<T>(),
                                cache.values.data<T>(),
                                out.data<T>()};
    const Dim width = layout.kv_heads * layout.head_width;
    for_each(ctx, kName, B * new_tokens * width, false, Append<T>{call, width});
    const dim3 blocks(static_cast<unsigned>(new_tokens), static_cast<unsigned>(layout.heads),
                      static_cast<unsigned>(B));
    const std::size_t shared =
        static_cast<std::size_t>((kWarps + 1) * layout.head_width) * sizeof(float);
    attend_kernel<<<blocks, dim3(32, kWarps), shared, ctx.stream().cuda()>>>(call);
    check_launch(kName);
  });
}

}  // namespace hyperslab::ops::cuda
