// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels_common.cuh"
#include "kernels_softmax.cuh"
#include "library_workspace.hpp"

// Attention on a cache in pages, whose samples differ in length: one kernel turns queries and keys
// and writes keys and values to their pages, one attends. A block of the second reads the keys of
// one key-value head once for up to kPagedPairs pairs of a new token and a query head; several
// blocks share the keys of few pairs, and a third kernel adds up what they found.

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "rope_attention_paged_forward";
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr Dim kMaxHeadWidth = 1024;

template <class T>
struct PagedCall {
  Dim heads;
  Dim kv_heads;
  Dim head_width;
  Dim new_tokens;
  LivePosition past;
  Dim window;
  float softcap;
  float scale;
  const T* sinks;  ///< of every head; null: there are none
  T* qkv;
  T* keys;  ///< (pages, tokens of a page, kv_heads head_width)
  T* values;
  const std::int32_t* pages;  ///< (samples, most)
  Dim most;
  int page_shift;  ///< tokens of a page are 1 << page_shift
  T* out;
  Dim splits;      ///< blocks that share the keys of a tile
  float* partial;  ///< if there are several: (samples, tokens, heads, splits, width + 2)

  [[nodiscard]] __device__ Dim group() const { return heads / kv_heads; }
  [[nodiscard]] __device__ Dim packed() const { return (heads + 2 * kv_heads) * head_width; }
  /// Keys that a new token sees: [begin_of, end_of).
  [[nodiscard]] __device__ Dim end_of(Dim sample, Dim token) const {
    return past.of(sample) + token + 1;
  }
  [[nodiscard]] __device__ Dim begin_of(Dim end) const {
    return window > 0 && end > window ? end - window : 0;
  }
  [[nodiscard]] __device__ std::int32_t page_of(Dim sample, Dim token) const {
    return pages[sample * most + (token >> page_shift)];
  }
  /// The first element of a token's row in keys and values, if it has a page.
  [[nodiscard]] __device__ Dim row_of(Dim sample, Dim token) const {
    const Dim page = page_of(sample, token);
    const Dim inside = token & ((Dim{1} << page_shift) - 1);
    return ((page << page_shift) + inside) * kv_heads * head_width;
  }
  [[nodiscard]] __device__ float score(float product) const {
    return softcap > 0 ? softcap * tanhf(product / softcap) : product;
  }
  [[nodiscard]] __device__ float* partial_of(Dim query, Dim head, Dim split) const {
    return partial + ((query * heads + head) * splits + split) * (head_width + 2);
  }
};

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
    const Dim place = i - row * call.packed();
    const Dim head = place / call.head_width;
    const Dim column = place - head * call.head_width;
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

/// The pairs of a tile, of which pair i is query head i % group of new token i / group.
struct Tile {
  Dim first;
  Dim last;
  __device__ Tile(Dim number, Dim pairs, Dim of_all)
      : first(number * pairs), last(min(first + pairs, of_all) - 1) {}
};

/// What a team of lanes has of one pair. Elements of 16 bits take the fast exponential.
template <int N>
struct PairSum {
  float top = -INFINITY;
  float sum = 0;
  float values[N] = {};

  template <int kKeys>
  __device__ void add(const float (&score)[kKeys], const float (&value)[kKeys][N]) {
    float larger = top;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) larger = fmaxf(larger, score[k]);
    if (larger == -INFINITY) return;
    const float shrink = exponential<N == kVector<bf16>>(top - larger);
    top = larger;
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= shrink;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const float weight = exponential<N == kVector<bf16>>(score[k] - top);
      sum += weight;
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += weight * value[k][i];
    }
  }
  /// Adds what the lane `offset` away has.
  __device__ void merge_lane(int offset) {
    const float other_top = __shfl_xor_sync(0xFFFFFFFFU, top, offset);
    const float other_sum = __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    const float larger = fmaxf(top, other_top);
    const float mine = top == -INFINITY ? 0.0F : exponential<N == kVector<bf16>>(top - larger);
    const float others =
        other_top == -INFINITY ? 0.0F : exponential<N == kVector<bf16>>(other_top - larger);
    top = larger;
    sum = mine * sum + others * other_sum;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = mine * values[i] + others * __shfl_xor_sync(0xFFFFFFFFU, values[i], offset);
    }
  }
};

/// Shared memory of a block.
template <int D, int kPairs>
struct TileMemory {
  alignas(16) float q[kPairs][D];
  float values[kWarps][D];
  float tops[kWarps];
  float sums[kWarps];
};

/// Where the pairs of a block's tile stand.
template <int kPairs>
struct PairBounds {
  Dim begin[kPairs];
  Dim end[kPairs];
};

/// Adds keys [begin, end) to all pairs; teams of kLanes lanes take kKeys keys in turn, each lane 16
/// bytes of a row.
template <int kLanes, int kPairs, class T>
__device__ void attend_keys(const PagedCall<T>& call, Dim sample, Dim kv_head, Dim begin, Dim end,
                            const float (&q)[kPairs][kLanes * kVector<T>],
                            const PairBounds<kPairs>& seen, PairSum<kVector<T>> (&parts)[kPairs]) {
  constexpr int N = kVector<T>;
  constexpr int kKeys = kPairs > 1 ? 2 : 4;  // at once: no more fit into registers
  constexpr int kTeams = kThreads / kLanes;
  const Dim team = threadIdx.x / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * N;
  const Dim offset = kv_head * call.head_width + column;
  // The bound is that of the whole block, so that all lanes take part in the sums.
  for (Dim first = begin; first < end; first += kTeams * kKeys) {
    Vec<T, N> raw_keys[kKeys] = {};
    Vec<T, N> raw_values[kKeys] = {};
    bool has_key[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const Dim j = first + k * kTeams + team;
      has_key[k] = j < end && call.page_of(sample, j) >= 0;
      if (!has_key[k]) continue;
      const Dim row = call.row_of(sample, j) + offset;
      raw_keys[k] = load_raw<N>(call.keys + row);
      raw_values[k] = load_raw<N>(call.values + row);
    }
    float values[kKeys][N];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[k][i] = to_real(raw_values[k].at[i]);
    }
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      float query[N];
      load<N>(&q[p][column], query);
      float score[kKeys];
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) dot += query[i] * to_real(raw_keys[k].at[i]);
#pragma unroll
        for (int lane = kLanes / 2; lane > 0; lane >>= 1) {
          dot += __shfl_xor_sync(0xFFFFFFFFU, dot, lane);
        }
        const Dim j = first + k * kTeams + team;
        const bool is_seen = has_key[k] && j >= seen.begin[p] && j < seen.end[p];
        score[k] = is_seen ? call.score(dot) : -INFINITY;
      }
      parts[p].add(score, values);
    }
  }
}

/// The sum of a block's warps of one pair, written to the output or to this split's place.
template <int D, int kPairs, class T>
__device__ void write_pair(const PagedCall<T>& call, const TileMemory<D, kPairs>& memory, Dim query,
                           Dim head, Dim split) {
  OnlineSum<false> total;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (memory.sums[warp] > 0) total.merge(memory.tops[warp], memory.sums[warp]);
  }
  if (call.sinks != nullptr && call.splits == 1) total.merge(to_real(call.sinks[head]), 1.0F);
  for (int c = static_cast<int>(threadIdx.x); c < D; c += kThreads) {
    float value = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      if (memory.sums[warp] > 0) {
        value += expf(memory.tops[warp] - total.top) * memory.values[warp][c];
      }
    }
    if (call.splits == 1) {
      call.out[(query * call.heads + head) * D + c] = from_real<T>(value / total.sum);
      continue;
    }
    float* partial = call.partial_of(query, head, split);
    partial[c] = value;
    if (c == 0) {
      partial[D] = total.top;
      partial[D + 1] = total.sum;
    }
  }
}

/// Block (tile and split, key-value head, sample), of heads that are kLanes * 16 bytes wide.
template <int kLanes, int kPairs, class T>
__global__ void __launch_bounds__(kThreads, kPairs > 4 ? 1 : 2)
    attend_pages_kernel(PagedCall<T> call) {
  constexpr int N = kVector<T>;
  constexpr int D = kLanes * N;
  __shared__ TileMemory<D, kPairs> memory;
  overlap();
  wait_for_earlier();
  const Dim number = blockIdx.x / call.splits;
  const Dim split = blockIdx.x - number * call.splits;
  const Dim kv_head = blockIdx.y;
  const Dim sample = blockIdx.z;
  const Dim group = call.group();
  const Tile tile(number, kPairs, call.new_tokens * group);
  const int pairs = static_cast<int>(tile.last - tile.first) + 1;
  PairBounds<kPairs> seen;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    seen.end[p] = p < pairs ? call.end_of(sample, (tile.first + p) / group) : 0;
    seen.begin[p] = call.begin_of(seen.end[p]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < kPairs * D; i += kThreads) {
    const int p = i / D;
    const Dim token = (tile.first + p) / group;
    const Dim head = kv_head * group + (tile.first + p) % group;
    const Dim query = sample * call.new_tokens + token;
    memory.q[p][i % D] =
        p < pairs ? call.scale * to_real(call.qkv[query * call.packed() + head * D + i % D]) : 0.0F;
  }
  __syncthreads();
  const Dim begin = seen.begin[0];
  const Dim end = call.end_of(sample, tile.last / group);
  const Dim share = (end - begin + call.splits - 1) / call.splits;
  const Dim from = begin + split * share;
  PairSum<N> parts[kPairs];
  attend_keys<kLanes, kPairs>(call, sample, kv_head, from, min(end, from + share), memory.q, seen,
                              parts);
  const unsigned warp = threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
#pragma unroll
    for (int offset = kLanes; offset < 32; offset <<= 1) parts[p].merge_lane(offset);
    if (lane < kLanes) {
#pragma unroll
      for (int i = 0; i < N; ++i) memory.values[warp][lane * N + i] = parts[p].values[i];
    }
    if (lane == 0) {
      memory.tops[warp] = parts[p].top;
      memory.sums[warp] = parts[p].sum;
    }
    __syncthreads();
    if (p < pairs) {
      const Dim pair = tile.first + p;
      write_pair(call, memory, sample * call.new_tokens + pair / group,
                 kv_head * group + pair % group, split);
    }
    __syncthreads();
  }
}

/// Block (new token, head, sample): the splits, in their order.
template <class T>
__global__ void __launch_bounds__(128) merge_pages_kernel(PagedCall<T> call) {
  overlap();
  wait_for_earlier();
  const Dim D = call.head_width;
  const Dim query = blockIdx.z * call.new_tokens + blockIdx.x;
  OnlineSum<false> total;
  for (Dim i = 0; i < call.splits; ++i) {
    const float* partial = call.partial_of(query, blockIdx.y, i);
    if (partial[D + 1] > 0) total.merge(partial[D], partial[D + 1]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[blockIdx.y]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += blockDim.x) {
    float value = 0;
    for (Dim i = 0; i < call.splits; ++i) {
      const float* partial = call.partial_of(query, blockIdx.y, i);
      if (partial[D + 1] > 0) value += expf(partial[D] - total.top) * partial[c];
    }
    call.out[(query * call.heads + blockIdx.y) * D + c] = from_real<T>(value / total.sum);
  }
}

/// Heads of any width. Block (new token, head, sample), whose warps take keys in turn; columns of a
/// warp are lane, lane + 32, ... Shared: q, then the values of every warp.
template <class T>
__global__ void __launch_bounds__(kThreads) attend_any_pages_kernel(PagedCall<T> call) {
  extern __shared__ float shared[];
  __shared__ float tops[kWarps];
  __shared__ float sums[kWarps];
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
  for (Dim c = threadIdx.x; c < D; c += kThreads) {
    shared[c] = call.scale * to_real(call.qkv[query * call.packed() + head * D + c]);
  }
  for (Dim c = lane; c < D; c += 32) mine[c] = 0;
  __syncthreads();
  const Dim end = call.end_of(sample, token);
  float top = -INFINITY;
  float sum = 0;
  for (Dim j = call.begin_of(end) + warp; j < end; j += kWarps) {
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
  for (int i = 0; i < kWarps; ++i) {
    if (sums[i] > 0) total.merge(tops[i], sums[i]);
  }
  if (call.sinks != nullptr) total.merge(to_real(call.sinks[head]), 1.0F);
  for (Dim c = threadIdx.x; c < D; c += kThreads) {
    float value = 0;
    for (int i = 0; i < kWarps; ++i) {
      if (sums[i] > 0) value += expf(tops[i] - total.top) * shared[(i + 1) * D + c];
    }
    call.out[(query * call.heads + head) * D + c] = from_real<T>(value / total.sum);
  }
}

dim3 blocks_of(Dim x, Dim y, Dim z) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

template <int kLanes, int kPairs, class T>
void launch(Context& ctx, PagedCall<T> call, Dim B) {
  const Dim tiles = ceil_divide(call.new_tokens * (call.heads / call.kv_heads), Dim{kPairs});
  call.splits = attention_paged_splits(tiles * call.kv_heads * B, call.most << call.page_shift);
  launch_overlapping(ctx, kName, attend_pages_kernel<kLanes, kPairs, T>,
                     {blocks_of(tiles * call.splits, call.kv_heads, B), kThreads}, call);
  if (call.splits == 1) return;
  launch_overlapping(ctx, kName, merge_pages_kernel<T>,
                     {blocks_of(call.new_tokens, call.heads, B), 128}, call);
}

/// The fewest pairs a tile that hold a token's, or as many as a tile can have.
template <int kLanes, class T>
void launch_pairs(Context& ctx, const PagedCall<T>& call, Dim B) {
  const Dim pairs = call.new_tokens * (call.heads / call.kv_heads);
  if (pairs <= 1) return launch<kLanes, 1>(ctx, call, B);
  if (pairs <= 2) return launch<kLanes, 2>(ctx, call, B);
  if (pairs <= 4) return launch<kLanes, 4>(ctx, call, B);
  static_assert(kPagedPairs == 8);
  launch<kLanes, 8>(ctx, call, B);
}

template <class T>
void attend(Context& ctx, const PagedCall<T>& call, Dim B) {
  if (aligned(call.qkv, call.keys, call.values)) {
    switch (call.head_width % kVector<T> == 0 ? call.head_width / kVector<T> : 0) {
      case 4: return launch_pairs<4>(ctx, call, B);
      case 8: return launch_pairs<8>(ctx, call, B);
      case 16: return launch_pairs<16>(ctx, call, B);
      case 32: return launch_pairs<32>(ctx, call, B);
      default: break;
    }
  }
  const std::size_t shared =
      static_cast<std::size_t>((kWarps + 1) * call.head_width) * sizeof(float);
  launch_overlapping(ctx, kName, attend_any_pages_kernel<T>,
                     {blocks_of(call.new_tokens, call.heads, B), kThreads, shared}, call);
}

template <class T>
void place(Context& ctx, const PagedCall<T>& call, const RotaryTables& tables, Dim rows) {
  const Place<T> op = {call, optional_data<float>(tables.cosines),
                       optional_data<float>(tables.sines),
                       tables.cosines ? tables.cosines.shape()[1] : 0};
  const bool vectors = call.head_width % kVector<T> == 0 && op.half % kVector<T> == 0 &&
                       aligned(call.qkv, call.keys, call.values, op.cosines, op.sines);
  const Dim packed = (call.heads + 2 * call.kv_heads) * call.head_width;
  for_each(ctx, kName, rows * packed, vectors, op);
}

}  // namespace

void rope_attention_paged_forward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  View qkv, const KeyValueCache& cache, View out) {
  require(layout.head_width <= kMaxHeadWidth,
          "rope_attention_paged_forward layout: heads on a GPU are at most 1024 wide");
  if (out.numel() == 0) return;
  with_element(qkv.dtype(), kName, [&]<class T>(T) {
    const auto [B, new_tokens, packed] = qkv.dims<3>(kName);
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
        static_cast<float*>(ctx.workspace(kName, attention_paged_workspace(layout)))};
    place(ctx, call, tables, B * new_tokens);
    attend(ctx, call, B);
  });
}

}  // namespace hyperslab::ops::cuda
