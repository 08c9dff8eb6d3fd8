// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/dropout.hpp"

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

/// Angles of rotary positions (Su et al. 2021, eq. 15): cos and sin of t / theta^(2i/Dh).
/// cosines, sines: (T_max, Dh / 2), f32 or f64. Setup only.
void rope_table(Context& ctx, float theta, View cosines, View sines);

/// Rotates query and key heads of qkv in place. Dimension i of a head is paired with i + Dh/2 (the
/// layout of Hugging Face's Llama). qkv: (B, T, packed); row t uses position first_position + t.
/// `inverse` rotates back, which is the backward pass.
enum class Rotation : std::uint8_t { forward, inverse };
void rope(Context& ctx, const HeadLayout& layout, CView cosines, CView sines, Dim first_position,
          Rotation rotation, View qkv);

/// Whether attention_forward and attention_backward take these operands on a GPU (cuDNN does not
/// take fp32, and head widths only in multiples of 8 up to 256).
[[nodiscard]] constexpr bool has_fused_attention_on_gpu(DType compute, Dim head_width) {
  return (compute == DType::bf16 || compute == DType::f16) && head_width % 8 == 0 &&
         head_width <= 256;
}

/// Causal attention, softmax(q k^T / sqrt(Dh)) v (Vaswani et al. 2017, eq. 1), without keeping the
/// scores. qkv: (B, T, packed); out: (B, T, H * Dh); log_sum_exp: (B, H, T) f32 (f64 for f64), kept
/// for backward.
void attention_forward(Context& ctx, const HeadLayout& layout, CView qkv, View out,
                       View log_sum_exp);
/// dqkv: (B, T, packed), overwritten. Scores are recomputed from qkv and log_sum_exp
/// (Dao et al. 2022, algorithm 4).
void attention_backward(Context& ctx, const HeadLayout& layout, CView dout, CView qkv, CView out,
                        CView log_sum_exp, View dqkv);

/// The reference path: batched products, a masked softmax as a pass of its own, probabilities kept.
/// probabilities: (B, H, T, T), before dropout. Dropout acts on the probabilities, of which row i,
/// key j of head h has element ((first_head + h) * T + i) * T + j of total_heads * T * T in a
/// sample; elements_per_sample and first_element are not read.
void attention_reference_forward(Context& ctx, const HeadLayout& layout, CView qkv,
                                 const Dropout& dropout, View out, View probabilities);
/// dprobabilities: (B, H, T, T), scratch.
void attention_reference_backward(Context& ctx, const HeadLayout& layout, CView dout, CView qkv,
                                  CView probabilities, const Dropout& dropout, View dprobabilities,
                                  View dqkv);

/// Attention of new tokens on a cache, for generation: appends the keys and values of qkv to the
/// cache at rows [past, past + T_new), then attends causally. qkv: (B, T_new, packed), rotated
/// already; key_cache, value_cache: (B, T_max, H_kv * Dh); out: (B, T_new, H * Dh).
void attention_cached_forward(Context& ctx, const HeadLayout& layout, CView qkv, Dim past,
                              View key_cache, View value_cache, View out);

}  // namespace hyperslab::ops
