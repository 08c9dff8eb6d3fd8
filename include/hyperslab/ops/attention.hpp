// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/token_position.hpp"

namespace hyperslab::ops {

/// Heads of packed queries, keys and values: the last dimension of qkv is
/// [H query heads | H_kv key heads | H_kv value heads] x Dh. Query head h reads key-value head
/// h / (H / H_kv) (grouped-query attention, Ainslie et al. 2023).
struct HeadLayout {
  Dim heads = 1;
  Dim kv_heads = 1;
  Dim head_width = 1;
  [[nodiscard]] Dim packed_width() const { return (heads + 2 * kv_heads) * head_width; }
};

/// Angles of rotary positions (Su et al. 2021, eq. 15): `magnitude` times cos and sin of
/// t frequencies[i]. cosines, sines: (T_max, number of frequencies), f32 or f64. Computed on the
/// host in f64. Setup only.
void rope_table(Context& ctx, std::span<const double> frequencies, double magnitude, View cosines,
                View sines);

/// Rotates query and key heads of qkv in place. cosines, sines: (T_max, D / 2), where the first D
/// dimensions of a head are turned, D <= Dh: dimension i is paired with i + D/2 (the layout of
/// Hugging Face's Llama). qkv: (B, T, packed); row t uses position first_position + t. `inverse` is
/// the backward pass: it turns back, by the same magnitude.
enum class Rotation : std::uint8_t { forward, inverse };
void rope(Context& ctx, const HeadLayout& layout, CView cosines, CView sines,
          const TokenPosition& first_position, Rotation rotation, View qkv);

/// Whether attention_forward and attention_backward take these operands on a GPU (cuDNN does not
/// take fp32, and head widths only in multiples of 8 up to 256).
[[nodiscard]] constexpr bool has_fused_attention_on_gpu(DType compute, Dim head_width) {
  return (compute == DType::bf16 || compute == DType::f16) && head_width % 8 == 0 &&
         head_width <= 256;
}

/// Which keys a query sees; an argument of every attention op. A device refuses by name what it
/// cannot do.
struct AttentionMask {
  enum class Kind : std::uint8_t {
    causal,  ///< those at its own position and before
    none,    ///< all
  };
  Kind kind = Kind::causal;
  bool operator==(const AttentionMask& other) const = default;
};
[[nodiscard]] std::string_view name_of(AttentionMask::Kind kind);

/// Attention, softmax(q k^T / sqrt(Dh)) v over the keys that the mask leaves (Vaswani et al. 2017,
/// eq. 1), without keeping the scores. qkv: (B, T, packed); out: (B, T, H * Dh); log_sum_exp:
/// (B, H, T) f32 (f64 for f64), kept for backward.
void attention_forward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask, CView qkv,
                       View out, View log_sum_exp);
/// What forward read and kept.
struct AttentionSaved {
  CView qkv;
  CView out;
  CView log_sum_exp;
};
/// dqkv: (B, T, packed), overwritten. Scores are recomputed from qkv and log_sum_exp
/// (Dao et al. 2022, algorithm 4).
void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask,
                        CView dout, const AttentionSaved& saved, View dqkv);

/// The reference path: batched GEMMs, a masked softmax of its own, probabilities kept.
/// probabilities: (B, H, T, T), before dropout. Dropout acts on the probabilities, of which row i,
/// key j of head h has element ((first_head + h) * T + i) * T + j of total_heads * T * T in a
/// sample; elements_per_sample and first_element are not read.
void attention_reference_forward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask,
                                 CView qkv, const Dropout& dropout, View out, View probabilities);
/// What forward read and kept.
struct AttentionReferenceSaved {
  CView qkv;
  CView probabilities;
  Dropout dropout{};
};
/// dprobabilities: (B, H, T, T), scratch.
void attention_reference_backward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask,
                                  CView dout, const AttentionReferenceSaved& saved,
                                  View dprobabilities, View dqkv);

/// Keys and values of earlier tokens: (B, T_max, H_kv * Dh), of which `past` rows are in use.
struct KeyValueCache {
  View keys;
  View values;
  TokenPosition past;
};
/// Attention of new tokens on a cache, for generation: writes the keys and values of qkv to rows
/// [past, past + T_new) of the cache, then attends to all rows up to there; a causal mask hides
/// later new tokens from earlier ones. qkv: (B, T_new, packed), rotated already; out:
/// (B, T_new, H * Dh).
void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionMask& mask,
                              CView qkv, const KeyValueCache& cache, View out);

}  // namespace hyperslab::ops
