// SPDX-License-Identifier: Apache-2.0
// Tiles of queries and keys in shared memory and on the tensor cores, for attention whose queries
// see an interval of keys that the GPU finds as it goes (Dao 2023, "FlashAttention-2"). A block has
// four warps; each has 16 rows of a tile of 64.
#pragma once

#include <cfloat>

#include "cuda/tools/fast.cuh"
#include "cuda/tools/mma.cuh"
#include "cuda/tools/shared_tile.cuh"
#include "cuda/tools/words.cuh"

namespace hyperslab::ops::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kTileWarps = 4;
inline constexpr int kWarpRows = kTileRows / kTileWarps;
inline constexpr int kTileThreads = 32 * kTileWarps;

/// The operands of one call of tiled attention, over all samples and heads.
template <class T>
struct TiledCall {
  int tokens;
  int heads;
  int kv_heads;
  int head_width;
  int window;
  const std::int32_t* first_keys;  ///< (B, T) or null
  float scale;
  float softcap;
  const T* qkv;        ///< (B, T, packed)
  T* out;              ///< (B, T, H Dh); read by backward
  float* log_sum_exp;  ///< (B, H, T); likewise
  const T* dout;
  float* dots;  ///< (B, H, T): sums of dout * out
  T* dqkv;

  [[nodiscard]] __device__ int packed() const { return (heads + 2 * kv_heads) * head_width; }
  [[nodiscard]] __device__ Dim row_of(int sample, int token) const {
    return static_cast<Dim>(sample) * tokens + token;
  }
  /// The first key that a query sees; does not fall along a sample.
  [[nodiscard]] __device__ int begin_of(int sample, int query) const {
    const int of_window = window > 0 ? max(0, query + 1 - window) : 0;
    if (first_keys == nullptr) return of_window;
    return max(of_window, min(first_keys[row_of(sample, query)], query));
  }
  /// Query, key and value heads inside qkv or dqkv.
  [[nodiscard]] __device__ Dim query_at(int sample, int head) const {
    return row_of(sample, 0) * packed() + static_cast<Dim>(head) * head_width;
  }
  [[nodiscard]] __device__ Dim key_at(int sample, int kv_head) const {
    return query_at(sample, heads + kv_head);
  }
  [[nodiscard]] __device__ Dim value_at(int sample, int kv_head) const {
    return query_at(sample, heads + kv_heads + kv_head);
  }
  /// A head inside out or dout.
  [[nodiscard]] __device__ Dim out_at(int sample, int head) const {
    return (row_of(sample, 0) * heads + head) * head_width;
  }
  [[nodiscard]] __device__ int out_row() const { return heads * head_width; }
  [[nodiscard]] __device__ Dim statistic_at(int sample, int head) const {
    return (static_cast<Dim>(sample) * heads + head) * tokens;
  }
};

/// Starts to copy rows [first, first + 64) of a head, whose rows are `stride` elements apart; rows
/// from `tokens` on and columns from `head_width` on become zero.
template <int kWidth, class T>
__device__ void load_tile(const SharedTile<kWidth>& to, const T* head, int stride, int first,
                          int tokens, int head_width) {
  constexpr int kChunks = kWidth / 8;
  constexpr int kRowsAtOnce = kTileThreads / kChunks;
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool has_column = chunk * 8 < head_width;
  const T* from = head + static_cast<Dim>(first + row) * stride + chunk * 8;
  const Dim step = static_cast<Dim>(kRowsAtOnce) * stride;
#pragma unroll
  for (int i = 0; i < kTileRows; i += kRowsAtOnce, from += step) {
    const bool there = has_column && first + row + i < tokens;
    load_chunk(to.at(row + i, chunk), there ? from : head, there);
  }
}

/// Lane 4 g + t holds of a 16 x 8 block of products rows g and g + 8, columns 2 t and 2 t + 1.
struct Lane {
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp_row = static_cast<int>(threadIdx.x / 32) * kWarpRows;  ///< first row in the tile
  [[nodiscard]] __device__ int row(int half) const { return warp_row + lane / 4 + 8 * half; }
  [[nodiscard]] __device__ int column(int block, int i) const {
    return 8 * block + lane % 4 * 2 + i;
  }
};

/// The operands of a step of 16 columns of a tile: rows of the warp, and all 64 rows of another.
struct StepOperands {
  std::uint32_t rows[4];
  std::uint32_t columns[4][4];
};
template <int kWidth>
__device__ void load_step(const SharedTile<kWidth>& a, const SharedTile<kWidth>& b, const Lane& at,
                          int step, StepOperands& to) {
  load_matrices(a.at(at.warp_row + at.lane % 16, 2 * step + at.lane / 16), to.rows);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    load_matrices(b.at(16 * pair + at.lane / 16 * 8 + at.lane % 8, 2 * step + at.lane / 8 % 2),
                  to.columns[pair]);
  }
}

/// products += rows of the warp in a (16 x kWidth) times the transpose of b (64 x kWidth). Operands
/// of a step are loaded while those before it multiply.
template <int kWidth, class T>
__device__ void multiply_rows(const SharedTile<kWidth>& a, const SharedTile<kWidth>& b,
                              const Lane& at, float (&products)[8][4]) {
  StepOperands operands[2];
  load_step(a, b, at, 0, operands[0]);
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    if (step + 1 < kWidth / 16) load_step(a, b, at, step + 1, operands[(step + 1) % 2]);
    const StepOperands& here = operands[step % 2];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      multiply_add<T>(products[2 * pair], here.rows, here.columns[pair][0], here.columns[pair][1]);
      multiply_add<T>(products[2 * pair + 1], here.rows, here.columns[pair][2],
                      here.columns[pair][3]);
    }
  }
}

/// sums (16 x kWidth) += weights (16 x 64), rounded to T, times b (64 x kWidth). Operands are
/// loaded kAhead blocks of columns before they are multiplied.
template <int kWidth, class T>
__device__ void add_weighted(const float (&weights)[8][4], const SharedTile<kWidth>& b,
                             const Lane& at, float (&sums)[kWidth / 8][4]) {
  constexpr int kPairs = kWidth / 16;
  constexpr int kAhead = 4;
  std::uint32_t columns[kAhead][4];
  const auto load = [&](int i) {  // block i of 4 kPairs
    load_matrices_transposed(
        b.at(16 * (i / kPairs) + at.lane % 16, 2 * (i % kPairs) + at.lane / 16),
        columns[i % kAhead]);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&left)[4] = weights[2 * step];
    const float(&right)[4] = weights[2 * step + 1];
    const std::uint32_t rows[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                                   pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      multiply_add<T>(sums[2 * pair], rows, columns[i % kAhead][0], columns[i % kAhead][1]);
      multiply_add<T>(sums[2 * pair + 1], rows, columns[i % kAhead][2], columns[i % kAhead][3]);
      if (i + kAhead < 4 * kPairs) load(i + kAhead);
    }
  }
}

/// Writes the warp's rows, times a factor for each half of them, to a head with rows `stride`
/// apart.
template <int kWidth, class T>
__device__ void store_rows(T* head, int stride, int first, int tokens, int head_width,
                           const Lane& at, const float (&sums)[kWidth / 8][4],
                           const float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + at.row(half);
    if (token >= tokens) continue;
    T* row = head + static_cast<Dim>(token) * stride;
#pragma unroll
    for (int block = 0; block < kWidth / 8; ++block) {
      const int column = at.column(block, 0);
      if (column >= head_width) continue;
      *reinterpret_cast<std::uint32_t*>(row + column) =
          pack<T>(sums[block][2 * half] * factor[half], sums[block][2 * half + 1] * factor[half]);
    }
  }
}

/// Divides the lane's rows of weighted values by their sums of weights and writes them, and their
/// log_sum_exp. off: the amount taken off their exponents, in units of log 2; parts: the lane's
/// parts of the sums.
template <int kWidth, class T>
__device__ void store_out(const TiledCall<T>& call, int sample, int head, int first_query,
                          const Lane& at, const float (&off)[2], const float (&parts)[2],
                          const float (&values)[kWidth / 8][4]) {
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = parts[half];
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    factor[half] = 1.0F / sum;
    const int query = first_query + at.row(half);
    if (at.lane % 4 == 0 && query < call.tokens) {
      call.log_sum_exp[call.statistic_at(sample, head) + query] = off[half] * kLn2 + logf(sum);
    }
  }
  store_rows<kWidth>(call.out + call.out_at(sample, head), call.out_row(), first_query, call.tokens,
                     call.head_width, at, values, factor);
}

/// softcap tanh(score / softcap), within some 1e-7 of softcap.
__device__ inline float capped_score(float softcap, float score) {
  const float power = power_of_2(2.0F * kLog2E * score / softcap);
  return softcap * (1.0F - __fdividef(2.0F, power + 1.0F));
}

/// Products become scaled and, if asked, capped scores.
template <class Call>
__device__ void to_scores(const Call& call, float (&products)[8][4]) {
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) products[block][i] *= call.scale;
  }
  if (call.softcap == 0) return;
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) products[block][i] = capped_score(call.softcap, products[block][i]);
  }
}

/// From a score and the gradient of its probability to both: weight = e^(score - log_sum_exp), and
/// the gradient of the score before its cap, over scale.
template <class T>
__device__ void to_gradient(const TiledCall<T>& call, bool sees, float log2_sum_exp, float dot,
                            float& score, float& gradient) {
  const float weight = sees ? power_of_2(score * kLog2E - log2_sum_exp) : 0.0F;
  gradient = weight * (gradient - dot);
  if (call.softcap > 0) {
    const float part = score / call.softcap;
    gradient *= 1.0F - part * part;
  }
  if (!sees) gradient = 0;
  score = weight;
}

/// A block's tile of queries of a head, by grid (tiles, heads, samples), and the tiles of keys that
/// they see on their way through two stages of shared memory.
template <int kWidth, class T>
struct QueryTile {
  using Tile = SharedTile<kWidth>;
  const TiledCall<T>& call;
  unsigned char* stages;  ///< keys and values, twice
  // Late queries see the most keys, so their blocks come first.
  int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  int last_query = min(first_query + kTileRows, call.tokens) - 1;
  int head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z);
  int first_tile = call.begin_of(sample, first_query) / kTileRows;  ///< first tile of keys
  int last_tile = first_query / kTileRows;
  int query[2];  ///< queries of the lane's two rows
  int begin[2];  ///< first keys that they see
  const T* key_head;
  const T* value_head;

  __device__ QueryTile(const TiledCall<T>& of, unsigned char* memory, const Lane& at)
      : call(of), stages(memory) {
    const int kv_head = head / (call.heads / call.kv_heads);
    key_head = call.qkv + call.key_at(sample, kv_head);
    value_head = call.qkv + call.value_at(sample, kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      query[half] = first_query + at.row(half);
      begin[half] = call.begin_of(sample, known(half));
    }
  }
  /// A query of the sample in place of one beyond its end.
  [[nodiscard]] __device__ int known(int half) const { return min(query[half], last_query); }
  [[nodiscard]] __device__ bool sees(int half, int key) const {
    return key <= query[half] && key >= begin[half];
  }
  __device__ void load_queries(const Tile& to) const {
    load_tile(to, call.qkv + call.query_at(sample, head), call.packed(), first_query, call.tokens,
              call.head_width);
  }
  /// Calls body(tile, keys, values) for each tile of keys; the first call waits for all loads
  /// before.
  template <class Body>
  __device__ void each_tile(Body&& body) const {
    load(first_tile, 0);
    commit_loads();
    for (int tile = first_tile; tile <= last_tile; ++tile) {
      const int stage = (tile - first_tile) % 2;
      if (tile < last_tile) load(tile + 1, 1 - stage);
      commit_loads();
      wait_for_loads<1>();
      __syncthreads();
      body(tile, keys(stage), values(stage));
      __syncthreads();  // before the stage is loaded again
    }
  }

 private:
  [[nodiscard]] __device__ Tile keys(int stage) const {
    return Tile(stages + 2 * stage * Tile::kBytes);
  }
  [[nodiscard]] __device__ Tile values(int stage) const {
    return Tile(stages + (2 * stage + 1) * Tile::kBytes);
  }
  __device__ void load(int tile, int stage) const {
    const int first = tile * kTileRows;
    load_tile(keys(stage), key_head, call.packed(), first, call.tokens, call.head_width);
    load_tile(values(stage), value_head, call.packed(), first, call.tokens, call.head_width);
  }
};

}  // namespace hyperslab::ops::cuda
