// SPDX-License-Identifier: Apache-2.0
// Attention by warpgroups (Shah et al. 2024, "FlashAttention-3"): a block is one of them, with a
// tile of queries or of keys. The copy engine brings the tiles that it meets, some ahead; the
// blocks of a multiprocessor take turns with its tensor cores.
#pragma once

#include "cuda/tools/tensor_map.hpp"
#include "cuda/tools/warpgroup.cuh"
#include "tiled_launch.cuh"
#include "warpgroup.hpp"

namespace hyperslab::ops::cuda {

static_assert(kTileRows == warpgroup::kRows && kTileThreads == warpgroup::kThreads);

/// Tiles come as boxes of a head's columns of 64 tokens.
template <class T>
struct WarpgroupCall : TiledCall<T> {
  CUtensorMap qkv_boxes;
  CUtensorMap dout_boxes;
  float* column_sums = nullptr;  ///< (B, tiles, packed) sums of dqkv over the rows of a tile
};

/// Turns products of queries and keys into scores. Without a cap they stay as they are until they
/// are exponents.
template <bool kCapped>
struct ScoreRule {
  float scale;
  float softcap;
  float unit = (kCapped ? 1.0F : scale) * kLog2E;  ///< factor from a score to units of log 2

  template <class Call>
  __device__ explicit ScoreRule(const Call& call) : scale(call.scale), softcap(call.softcap) {}

  __device__ void to_scores(float (&products)[8][4]) const {
    if constexpr (kCapped) {
#pragma unroll
      for (int block = 0; block < 8; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          products[block][i] = capped_score(softcap, scale * products[block][i]);
        }
      }
    }
  }
  /// e^(score - log_sum_exp)
  [[nodiscard]] __device__ float weight(float log2_sum_exp, float score) const {
    return power_of_2(fmaf(score, unit, -log2_sum_exp));
  }
  /// From a weight and the gradient of its probability to the gradient of the score before its cap,
  /// over scale.
  [[nodiscard]] __device__ float gradient(float weight, float log2_sum_exp, float gradient,
                                          float dot) const {
    const float of_score = weight * (gradient - dot);
    if constexpr (kCapped) {
      const float part = (__log2f(weight) + log2_sum_exp) * kLn2 / softcap;
      return weight > 0 ? of_score * (1.0F - part * part) : 0.0F;
    }
    return of_score;
  }
};

constexpr int kBarrierBytes = 64;  // a block's barriers in shared memory: eight at most

/// Slots of tiles in shared memory that are filled in turn.
template <int kWidth, int kSlots>
struct TileRing {
  using Tile = warpgroup::Tile<kWidth>;
  static constexpr int kBytes = kSlots * Tile::kBytes;
  unsigned char* memory;
  std::uint64_t* full;  ///< kSlots barriers

  [[nodiscard]] __device__ unsigned char* memory_of(int i) const {
    return memory + i % kSlots * Tile::kBytes;
  }
  [[nodiscard]] __device__ Tile tile(int i) const { return Tile(memory_of(i)); }
  [[nodiscard]] __device__ std::uint64_t* barrier(int i) const { return &full[i % kSlots]; }
  __device__ void init() const {
    for (int i = 0; i < kSlots; ++i) tma::init(&full[i], 1);
  }
  /// One thread: tile i comes from columns [column, column + kWidth) of 64 tokens.
  __device__ void load(int i, const CUtensorMap& from, int column, int token, int sample) const {
    tma::arrive_for(barrier(i), Tile::kBytes);
    tma::copy(tile(i).base, from, {0, token, column / warpgroup::kSwizzled, sample}, barrier(i));
  }
  __device__ void wait(int i) const {
    tma::wait(barrier(i), static_cast<unsigned>(i / kSlots) & 1U);
  }
};

/// Values become an operand of add_product.
template <class T>
__device__ void to_rows(const float (&values)[8][4], warpgroup::Rows& rows) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const float(&left)[4] = values[2 * step];
    const float(&right)[4] = values[2 * step + 1];
    rows[step][0] = pack<T>(left[0], left[1]);
    rows[step][1] = pack<T>(left[2], left[3]);
    rows[step][2] = pack<T>(right[0], right[1]);
    rows[step][3] = pack<T>(right[2], right[3]);
  }
}

/// The queries of a block, by grid (tiles, heads, samples), and the tiles of keys that they see,
/// from the first key that one of them sees.
template <class T>
struct QueryRows {
  const TiledCall<T>& call;
  // Late queries see the most keys, so their blocks come first.
  int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  int last_query = min(first_query + kTileRows, call.tokens) - 1;
  int head = static_cast<int>(blockIdx.y);
  int sample = static_cast<int>(blockIdx.z);
  int first_key = call.begin_of(sample, first_query);
  int all_see_from = call.begin_of(sample, last_query);  ///< the first key of the last query
  int tiles = warpgroup::uniform((last_query - first_key) / kTileRows + 1);
  int query[2];  ///< queries of the lane's two rows
  int begin[2];  ///< first keys that they see
  // Columns of qkv.
  int query_column = head * call.head_width;
  int key_column = (call.heads + head / (call.heads / call.kv_heads)) * call.head_width;
  int value_column = key_column + call.kv_heads * call.head_width;

  __device__ QueryRows(const TiledCall<T>& of, const Lane& at) : call(of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      query[half] = first_query + at.row(half);
      begin[half] = call.begin_of(sample, known(half));
    }
  }
  /// A query of the sample in place of one beyond its end.
  [[nodiscard]] __device__ int known(int half) const { return min(query[half], last_query); }
  [[nodiscard]] __device__ int key_of(int tile) const { return first_key + tile * kTileRows; }
  /// Scores of keys that are not seen become -infinity, for a weight of 0.
  __device__ void mask(const Lane& at, int tile, float (&scores)[8][4]) const {
    const int key = key_of(tile);
    if (key + kTileRows - 1 <= first_query && key >= all_see_from) return;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of = key + at.column(block, i % 2);
        if (of > query[i / 2] || of < begin[i / 2]) scores[block][i] = -INFINITY;
      }
    }
  }
};

/// Calls body(Width<W>(), true_type if scores are capped, T()) for heads of a width that
/// has_warpgroup_width().
template <class Body>
void with_warpgroups(DType dtype, const HeadLayout& layout, double softcap, const char* op,
                     Body&& body) {
  const auto with_cap = [&](auto width, auto element) {
    if (softcap > 0) {
      body(width, std::true_type(), element);
    } else {
      body(width, std::false_type(), element);
    }
  };
  with_element(dtype, op, [&]<class T>(T element) {
    if constexpr (sizeof(T) == 2) {
      if (layout.head_width == 64) return with_cap(Width<64>(), element);
      if (layout.head_width == 128) return with_cap(Width<128>(), element);
    }
    throw Error(ExitCode::internal,
                std::string(op) + ": warpgroups take heads of 64 or 128 16-bit elements");
  });
}

/// (B, tokens, columns) in boxes of 64 tokens and a head's columns, as warpgroup::Tile wants them:
/// dimensions are the columns of a swizzled row, tokens, such rows of a token, samples. Boxes of
/// fewer tokens have the columns of one swizzled row.
template <class T>
CUtensorMap boxes_of(const char* op, CView view, int head_width,
                     Dim box_tokens = warpgroup::kRows) {
  const Dim tokens = view.shape()[1];
  const Dim row = view.shape()[2];
  constexpr Dim kBytes = sizeof(T);
  constexpr Dim kColumns = warpgroup::kSwizzled;
  return tensor_map(
      op, view.raw(),
      {std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
       {kColumns, tokens, row / kColumns, view.shape()[0]},
       {row * kBytes, kColumns * kBytes, tokens * row * kBytes},
       {kColumns, box_tokens, box_tokens == warpgroup::kRows ? head_width / kColumns : 1, 1},
       CU_TENSOR_MAP_SWIZZLE_128B});
}

}  // namespace hyperslab::ops::cuda
