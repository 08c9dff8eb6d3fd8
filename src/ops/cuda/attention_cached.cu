// SPDX-License-Identifier: Apache-2.0
#include "kernels_common.cuh"
#include "kernels_softmax.cuh"
#include "library_workspace.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;       // that share the keys of one query
constexpr int kKeysAtOnce = 4;  // whose dot products are in flight in a warp
constexpr Dim kMaxHeadWidth = 1024;
constexpr const char* kName = "attention_cached_forward";
constexpr Dim kLeastKeys = 64;  // of a split that is not the last

template <class T>
struct CachedCall {
  Dim heads;
  Dim kv_heads;
  Dim head_width;
  Dim packed;
  Dim new_tokens;
  LivePosition past;
  Dim max_tokens;
  bool causal;
  Dim window;
  float softcap;
  float scale;
  const T* sinks;  ///< of every head; null: there are none
  const T* qkv;
  T* key_cache;
  T* value_cache;
  T* out;
  Dim splits;      ///< blocks that share the keys of a query
  float* partial;  ///< if there are several: (queries, heads, splits, width + 2)

  /// Keys that a new token sees.
  [[nodiscard]] __device__ Dim end_of(Dim token) const {
    return past.get() + (causal ? token + 1 : new_tokens);
  }
  /// The first of them.
  [[nodiscard]] __device__ Dim begin_of(Dim token) const {
    const Dim end = end_of(token);
    return window > 0 && end > window ? end - window : 0;
  }
  /// Of so many keys those of each split but the last, so that few keys lie with few splits.
  [[nodiscard]] __device__ Dim keys_of_split(Dim keys) const {
    const Dim share = (keys + splits - 1) / splits;
    return share < kLeastKeys ? kLeastKeys : share;
  }
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
    const Dim to = (sample * call.max_tokens + call.past.get() + token) * width + column;
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
  float softcap;
  [[nodiscard]] __device__ float capped(float score) const {
    return softcap > 0 ? softcap * tanhf(score / softcap) : score;
  }
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

/// What a team of lanes has of one query: kWidth columns of the sum of its values, a lane.
template <int kWidth>
struct TeamSum {
  float top = -INFINITY;
  float sum = 0;
  float values[kWidth] = {};

  /// Adds keys by their scores, -infinity for those that are not there.
  template <int kKeys, class T>
  __device__ void add(const float (&score)[kKeys], const Vec<T, kWidth> (&value)[kKeys]) {
    float larger = top;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) larger = fmaxf(larger, score[k]);
    if (larger == -INFINITY) return;
    const float shrink = expf(top - larger);
    top = larger;
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= shrink;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const float weight = expf(score[k] - top);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += weight * to_real(value[k].at[i]);
    }
  }
};

/// Keys [begin, end) of one head of the cache; teams of kLanes lanes take keys in turn, each lane
/// 16 bytes of a row.
template <int kLanes, class T>
__device__ TeamSum<kVector<T>> attend_team(const float (&q)[kVector<T>], const CachedHead<T>& head,
                                           Dim begin) {
  constexpr int N = kVector<T>;
  constexpr int kTeams = kWarps * 32 / kLanes;
  const unsigned thread = threadIdx.y * 32 + threadIdx.x;
  const Dim column = thread % kLanes * N;
  TeamSum<N> part;
  // The bound is that of the whole block, so that all lanes take part in the sums.
  for (Dim first = begin; first < head.end; first += kTeams * kKeysAtOnce) {
    Vec<T, N> keys[kKeysAtOnce] = {};
    Vec<T, N> values[kKeysAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kKeysAtOnce; ++k) {
      const Dim j = first + k * kTeams + thread / kLanes;
      if (j >= head.end) continue;
      keys[k] = load_raw<N>(head.keys + j * head.row + column);
      values[k] = load_raw<N>(head.values + j * head.row + column);
    }
    float score[kKeysAtOnce];
#pragma unroll
    for (int k = 0; k < kKeysAtOnce; ++k) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) dot += q[i] * to_real(keys[k].at[i]);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
        dot += __shfl_xor_sync(0xFFFFFFFFU, dot, offset);
      }
      score[k] = first + k * kTeams + thread / kLanes < head.end ? head.capped(dot) : -INFINITY;
    }
    part.add(score, values);
  }
  return part;
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
  const TeamSum<N> part = attend_team<kLanes>(q, cached, begin);
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
    const auto [B, new_tokens, packed] = qkv.dims<3>("attention_cached_forward qkv");
    const Dim rows = cache.keys.shape()[1];
    const CachedCall<T> call = {
        layout.heads,
        layout.kv_heads,
        layout.head_width,
        packed,
        new_tokens,
        live_position(cache.past),
        rows,
        scores.mask.kind == AttentionMask::Kind::causal,
        scores.mask.window,
        static_cast<float>(scores.softcap),
        static_cast<float>(scores.scale_of(layout)),
        scores.sinks.logits ? scores.sinks.logits.data<T>() : nullptr,
        qkv.data<T>(),
        cache.keys.data<T>(),
        cache.values.data<T>(),
        out.data<T>(),
        attention_cached_splits(layout, B * new_tokens, rows),
        static_cast<float*>(ctx.workspace(kName, attention_cached_workspace(layout)))};
    const Dim width = layout.kv_heads * layout.head_width;
    for_each(ctx, kName, B * new_tokens * width, false, Append<T>{call, width});
    attend(ctx, call, B);
  });
}

}  // namespace hyperslab::ops::cuda
