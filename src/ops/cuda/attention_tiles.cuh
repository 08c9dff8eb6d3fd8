// SPDX-License-Identifier: Apache-2.0
// Tiles of queries and keys in shared memory and on the tensor cores, for attention whose queries
// see an interval of keys that the GPU finds as it goes (Dao 2023, "FlashAttention-2"). A block has
// four warps; each has 16 rows of a tile of 64.
#pragma once

#include <cfloat>

#include "kernels_mma.cuh"

namespace hyperslab::ops::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kTileWarps = 4;
inline constexpr int kWarpRows = kTileRows / kTileWarps;
inline constexpr int kTileThreads = 32 * kTileWarps;
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.69314718F;

/// What one call of tiled attention reads and writes, over all samples and heads.
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

/// 64 rows of kWidth 16-bit elements in shared memory, in chunks of 16 bytes that are permuted
/// within groups of eight so that eight rows of a column of chunks lie in different banks.
template <int kWidth>
struct SharedTile {
  static constexpr int kBytes = kTileRows * kWidth * 2;
  std::uint32_t base;
  __device__ explicit SharedTile(unsigned char* memory)
      : base(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory))) {}
  [[nodiscard]] __device__ std::uint32_t at(int row, int chunk) const {
    return base + static_cast<std::uint32_t>(row * kWidth * 2 + (chunk ^ (row & 7)) * 16);
  }
};

/// Starts to copy rows [first, first + 64) of a head, whose rows are `stride` elements apart; rows
/// from `tokens` on and columns from `head_width` on become zero.
template <int kWidth, class T>
__device__ void load_tile(const SharedTile<kWidth>& to, const T* head, int stride, int first,
                          int tokens, int head_width) {
  constexpr int kChunks = kWidth / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const bool there = first + row < tokens && chunk * 8 < head_width;
    const T* from = there ? head + static_cast<Dim>(first + row) * stride + chunk * 8 : head;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.at(row, chunk)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  }
}
__device__ inline void commit_loads() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all but the newest kPending groups of loads of this thread have ended.
template <int kPending>
__device__ void wait_for_loads() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void load_matrices(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

/// Lane 4 g + t holds of a 16 x 8 block of products rows g and g + 8, columns 2 t and 2 t + 1.
struct Lane {
  int lane = static_cast<int>(threadIdx.x % 32);
  int warp_row = static_cast<int>(threadIdx.x / 32) * kWarpRows;  ///< of the tile
  [[nodiscard]] __device__ int row(int half) const { return warp_row + lane / 4 + 8 * half; }
  [[nodiscard]] __device__ int column(int block, int i) const {
    return 8 * block + lane % 4 * 2 + i;
  }
};

/// products += rows of the warp in a (16 x kWidth) times the transpose of b (64 x kWidth).
template <int kWidth, class T>
__device__ void multiply_rows(const SharedTile<kWidth>& a, const SharedTile<kWidth>& b,
                              const Lane& at, float (&products)[8][4]) {
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    std::uint32_t rows[4];
    load_matrices(a.at(at.warp_row + at.lane % 16, 2 * step + at.lane / 16), rows);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t columns[4];
      load_matrices(b.at(16 * pair + at.lane / 16 * 8 + at.lane % 8, 2 * step + at.lane / 8 % 2),
                    columns);
      multiply_add<T>(products[2 * pair], rows, columns[0], columns[1]);
      multiply_add<T>(products[2 * pair + 1], rows, columns[2], columns[3]);
    }
  }
}

template <class T>
__device__ std::uint32_t pack(float low, float high) {
  const T pair[2] = {from_real<T>(low), from_real<T>(high)};
  std::uint32_t out;
  memcpy(&out, pair, sizeof out);
  return out;
}

/// sums (16 x kWidth) += weights (16 x 64), rounded to T, times b (64 x kWidth).
template <int kWidth, class T>
__device__ void add_weighted(const float (&weights)[8][4], const SharedTile<kWidth>& b,
                             const Lane& at, float (&sums)[kWidth / 8][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&left)[4] = weights[2 * step];
    const float(&right)[4] = weights[2 * step + 1];
    const std::uint32_t rows[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                                   pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      std::uint32_t columns[4];
      load_matrices_transposed(b.at(16 * step + at.lane % 16, 2 * pair + at.lane / 16), columns);
      multiply_add<T>(sums[2 * pair], rows, columns[0], columns[1]);
      multiply_add<T>(sums[2 * pair + 1], rows, columns[2], columns[3]);
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

__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// softcap tanh(score / softcap), within some 1e-7 of softcap.
__device__ inline float capped_score(float softcap, float score) {
  const float power = power_of_2(2.0F * kLog2E * score / softcap);
  return softcap * (1.0F - __fdividef(2.0F, power + 1.0F));
}

/// Products become scaled and, if asked, capped scores.
template <class T>
__device__ void to_scores(const TiledCall<T>& call, float (&products)[8][4]) {
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

}  // namespace hyperslab::ops::cuda
