// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/matmul.hpp"
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

/// True if attention_forward and attention_backward take these operands on a GPU (cuDNN does not
/// take fp32, and head widths only in multiples of 8 up to 256).
[[nodiscard]] constexpr bool has_fused_attention_on_gpu(DType compute, Dim head_width) {
  return (compute == DType::bf16 || compute == DType::f16) && head_width % 8 == 0 &&
         head_width <= 256;
}

/// Which keys a query sees.
struct AttentionMask {
  enum class Kind : std::uint8_t {
    causal,  ///< keys at its own position and before
    none,    ///< all keys
  };
  Kind kind = Kind::causal;
  /// Sliding window of a causal mask (Beltagy et al. 2020, section 3.1): the most keys that a query
  /// sees, its own the last of them; 0: all before it.
  Dim window = 0;
};
[[nodiscard]] std::string_view name_of(AttentionMask::Kind kind);

/// A learned logit a head that every query's softmax takes in beside its scores, and that has no
/// value: weight that goes there goes nowhere (gpt-oss 2025; Xiao et al. 2024, table 3).
struct AttentionSinks {
  CView logits{};  ///< (H) in the dtype of qkv; absent: there are none
  /// (B, H, T) f32 (f64 for f64): forward passes write the weight that each query gives its sink,
  /// for attention_sinks_backward; absent: it is not wanted. No op of a cache writes it.
  View weights{};
};

/// The mask and scaling of the scores; an argument of every attention op. A device refuses by name
/// the masks and scalings that it cannot do.
struct AttentionScores {
  AttentionMask mask{};
  double scale = 0;    ///< factor of the products; 0: 1 / sqrt(Dh)
  double softcap = 0;  ///< a score s becomes softcap tanh(s / softcap) (Gemma 2); 0: it stays
  /// (B, T) i32, with a causal mask only: the first key that each query sees, where the document
  /// of its token begins; must not fall along a sample. Later than the query counts as its own key.
  /// Absent: key 0.
  CView first_keys{};
  AttentionSinks sinks{};

  AttentionScores() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most callers have a mask alone
  AttentionScores(const AttentionMask& seen) : mask(seen) {}
  [[nodiscard]] double scale_of(const HeadLayout& layout) const;
};
/// Share of all pairs of T queries and T keys that a mask leaves; documents do not count.
[[nodiscard]] double seen_share(const AttentionMask& mask, Dim T);

/// Attention, softmax(scale q k^T) v over the keys that the mask leaves (Vaswani et al. 2017,
/// eq. 1), without keeping the scores. qkv: (B, T, packed); out: (B, T, H * Dh); log_sum_exp:
/// (B, H, T) f32 (f64 for f64), kept for backward.
void attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                       CView qkv, View out, View log_sum_exp);
/// The operands and outputs of attention_forward that its backward reads.
struct AttentionSaved {
  CView qkv;
  CView out;
  CView log_sum_exp;
};
/// The outputs of backward. dqkv: (B, T, packed), overwritten. dbias: (packed), (+)= column sums of
/// dqkv, before or after it is rounded, the gradient of a bias that was added to qkv; absent: not
/// asked for.
struct AttentionGradients {
  View dqkv;
  View dbias{};
  Accumulate accumulate_bias = Accumulate::no;
};
/// Scores are recomputed from qkv and log_sum_exp (Dao et al. 2022, algorithm 4).
void attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                        CView dout, const AttentionSaved& saved,
                        const AttentionGradients& gradients);

/// Heads of queries, keys or values inside a buffer (B, T, row): head h of a token begins at column
/// first + h * width of its row.
template <class V>
struct HeadsOf {
  V base;
  Dim first = 0;
  Dim heads = 1;
  Dim width = 1;
};
/// Queries, keys and values that lie anywhere. Keys and values may be fewer or more than queries,
/// and values of another width than keys.
struct AttentionOperands {
  HeadsOf<CView> q;
  HeadsOf<CView> k;
  HeadsOf<CView> v;
  /// Query i has the position first_query + i among the keys, for masks, windows and first_keys. A
  /// negative position lies before all keys; one behind them sees the keys that its window leaves.
  Dim first_query = 0;
  /// The heads, with the width of keys, of which AttentionScores::scale_of() takes the scale.
  [[nodiscard]] HeadLayout layout() const { return {q.heads, k.heads, k.width}; }
};
[[nodiscard]] AttentionOperands packed_operands(const HeadLayout& layout, CView qkv);
/// Attention to some keys: out (B, Tq, H * Dv), log_sum_exp (B, H, Tq). A query that saw none has
/// the output 0 and the logarithm -infinity.
struct AttentionPart {
  CView out;
  CView log_sum_exp;
};
/// Gradients, overwritten, in the places of the operands; the rest of their buffers stays.
struct AttentionOperandGradients {
  HeadsOf<View> dq;
  HeadsOf<View> dk;
  HeadsOf<View> dv;
};
/// attention_forward() of operands that lie anywhere. Packed ones go the way of
/// attention_forward(); a GPU takes no others yet.
void attention_operands_forward(Context& ctx, const AttentionOperands& operands,
                                const AttentionScores& scores, View out, View log_sum_exp);
/// Its backward. With `saved` of merge_attention() it gives the gradient's part from these keys.
void attention_operands_backward(Context& ctx, const AttentionOperands& operands,
                                 const AttentionScores& scores, CView dout,
                                 const AttentionPart& saved,
                                 const AttentionOperandGradients& gradients);
/// Attention to the keys of both parts, which have none in common. The result may overwrite one.
void merge_attention(Context& ctx, const AttentionPart& a, const AttentionPart& b, View out,
                     View log_sum_exp);

/// The gradient of sink logits; with it the gradients of queries, keys and values come from the ops
/// for them, which need no more than the values that forward kept:
///   dlogits[h] = -sum over samples and queries of weights x (dout . out)
/// dout, out: (B, T, H * Dh), of the fused or the reference path; weights: AttentionSinks::weights;
/// dlogits: (H). The sum has one order.
void attention_sinks_backward(Context& ctx, const HeadLayout& layout, CView dout, CView out,
                              CView weights, Accumulate accumulate, View dlogits);

/// The reference path: batched GEMMs, a masked softmax of its own, probabilities kept.
/// probabilities: (B, H, T, T), before dropout. Dropout acts on the probabilities, of which row i,
/// key j of head h has element ((first_head + h) * T + i) * T + j of total_heads * T * T in a
/// sample; elements_per_sample and first_element are not read.
void attention_reference_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, const Dropout& dropout,
                                 View out, View probabilities);
/// The operands of attention_reference_forward and the probabilities that its backward reads.
struct AttentionReferenceSaved {
  CView qkv;
  CView probabilities;
  Dropout dropout{};
};
/// dprobabilities: (B, H, T, T), scratch.
void attention_reference_backward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, CView dout,
                                  const AttentionReferenceSaved& saved, View dprobabilities,
                                  View dqkv);

/// Keys and values of earlier tokens, of which `past` rows of each sample are in use.
struct KeyValueCache {
  /// With pages (pages, tokens of a page, H_kv * Dh), a power of two of tokens; without, the pages
  /// are in order, one a sample: (B, T_max, H_kv * Dh).
  View keys;
  View values;
  TokenPosition past;  ///< common to all samples, or one of each
  /// (B, most pages of a sample) i32 on the device: pages[b][i] holds tokens of sample b from
  /// i * (tokens of a page) on (Kwon et al. 2023, section 4.1); or absent.
  CView pages{};
  [[nodiscard]] Dim page_tokens() const { return keys.shape()[1]; }
  /// Tokens that the cache of a sample has room for.
  [[nodiscard]] Dim room() const { return (pages ? pages.shape()[1] : 1) * page_tokens(); }
};
/// The tables of rope(); absent without rotary positions.
struct RotaryTables {
  CView cosines;
  CView sines;
};
/// Attention of new tokens on a cache, for generation: rope() of the new tokens from cache.past on,
/// then their keys and values are written to rows [past, past + T_new) of the cache, then they
/// attend to all rows up to their own. The mask is causal, without first_keys. qkv: (B, T_new,
/// packed), unspecified afterwards; out: (B, T_new, H * Dh). A GPU takes heads of at most 1,024.
///
/// New tokens that only fill up a sample may lie where `pages` is -1: they are not kept, and their
/// outputs count for nothing. Samples that write to one page must write the same.
void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              const RotaryTables& tables, View qkv, const KeyValueCache& cache,
                              View out);

}  // namespace hyperslab::ops
