// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/view.hpp"
#include "hyperslab/model/rope.hpp"
#include "hyperslab/nn/drop_path_rule.hpp"
#include "hyperslab/nn/experts_config.hpp"
#include "hyperslab/nn/matrix_init.hpp"
#include "hyperslab/nn/qk_norm.hpp"
#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/param/parametrization.hpp"
#include "hyperslab/param/spec.hpp"

namespace hyperslab::model {

/// gpt2 (Radford et al. 2019), llama (Touvron et al. 2023) or vit (Dosovitskiy et al. 2021).
enum class Family : std::uint8_t { gpt2, llama, vit };
[[nodiscard]] constexpr std::string_view name_of(Family family) {
  switch (family) {
    case Family::gpt2: return "gpt2";
    case Family::llama: return "llama";
    case Family::vit: return "vit";
  }
  return "?";
}

/// sincos2d: sinusoids of row and column of a patch (Chen et al. 2021, "An empirical study of
/// training self-supervised vision transformers", section 4.4); of images alone.
enum class Position : std::uint8_t { learned, sinusoidal, rope, none, sincos2d };
using nn::QkNorm;
/// The input of the class head: the class token, or the mean of all patches.
enum class Pooling : std::uint8_t { token, mean };
/// The place of norms: before a sublayer, after its residual addition (post), before it and after
/// its output (sandwich, Gemma 2), or after its output alone (post_sublayer, OLMo 2).
enum class NormPlace : std::uint8_t { pre, post, sandwich, post_sublayer };
/// A deck may ask for `cudnn`; the deck reader refuses it off the GPU and hands on `fused`.
enum class AttentionPath : std::uint8_t { automatic, fused, reference, cudnn };

/// The keys that queries see, and the treatment of the scores between them.
struct AttentionSpec {
  Dim window = 0;      ///< most keys that a query sees, its own the last; 0: all before it
  Dim full_every = 0;  ///< every layer whose number, from 1 on, it divides has no window; 0: none
  Dim first_windowed = 0;  ///< layers before it, counted from 0, have no window
  double scale = 0;        ///< factor of the products of queries and keys; 0: 1 / sqrt(head width)
  double softcap = 0;      ///< scores s become softcap tanh(s / softcap); 0: they stay
  bool sinks = false;      ///< every head has a learned logit without a value beside its scores
  /// The window of a layer, 0: none.
  [[nodiscard]] Dim window_of(Dim layer) const {
    const bool full = full_every > 0 && (layer + 1) % full_every == 0;
    return full || layer < first_windowed ? 0 : window;
  }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// The ends of a vision transformer, which stand for tokens and vocabulary. Family::vit alone.
struct ImageSpec {
  Dim size = 0;      ///< rows and columns of pixels
  Dim patch = 0;     ///< rows and columns of pixels of a patch, divides `size`
  Dim channels = 3;  ///< 3, or 1: the luma of the image
  Dim classes = 0;
  Pooling pooling = Pooling::token;
  /// Rows and columns of patches.
  [[nodiscard]] Dim grid() const { return patch == 0 ? 0 : size / patch; }
  [[nodiscard]] Dim patches() const { return grid() * grid(); }
  /// Values of a patch.
  [[nodiscard]] Dim patch_values() const { return channels * patch * patch; }
  /// Positions of the residual stream: patches, after the class token if there is one.
  [[nodiscard]] Dim tokens() const { return patches() + (pooling == Pooling::token ? 1 : 0); }
  friend bool operator==(const ImageSpec&, const ImageSpec&) = default;
};

/// Deck section `model`: one transformer with orthogonal choices; a family only sets defaults.
struct ModelSpec {
  Family family = Family::gpt2;
  Dim layers = 0;
  Dim width = 0;
  Dim heads = 0;
  Dim kv_heads = 0;        ///< 0 in the deck: as many as heads
  Dim own_head_width = 0;  ///< the deck's head_width; 0: width / heads
  Dim ffn_width = 0;   ///< 0 in the deck: 4 width; gated: 8/3 width rounded up to a multiple of 64
  Dim vocabulary = 0;  ///< vit: image.classes
  Dim context = 0;     ///< vit: image.tokens()
  Position position = Position::learned;
  RopeSpec rope = {};
  double rope_local_theta = 0;  ///< base of layers with a window, unscaled; 0: as all others
  /// Factor of the vectors that the token table gives, before positions are added; 0 in the deck:
  /// sqrt(width) with sinusoidal positions (Vaswani et al. 2017, 3.4), of mup_base_width if there
  /// is one, else 1.
  double embedding_scale = 0;
  ops::NormKind norm = ops::NormKind::layernorm;
  NormPlace norm_place = NormPlace::pre;
  double norm_eps = 1e-5;
  /// Attention and feed-forward network read the same stream, and their outputs are added to it
  /// together (Wang & Komatsuzaki 2021, GPT-J; GPT-NeoX).
  bool parallel_block = false;
  ops::Activation activation = ops::Activation::gelu_tanh;
  bool bias = true;
  QkNorm qk_norm = QkNorm::none;
  AttentionSpec scores = {};
  double logit_softcap = 0;   ///< as AttentionSpec::softcap, of the head's logits
  bool qkv_bias = false;      ///< queries, keys and values have biases where `bias` is false
  bool unbiased_qkv = false;  ///< queries, keys and values have none where `bias` is true
  bool tie_embeddings = true;
  double dropout = 0;
  AttentionPath attention = AttentionPath::automatic;
  nn::InitRule init = nn::InitRule::normal;  ///< initial values of matrices
  double init_std = 0.02;                    ///< deviation with InitRule::normal, and of tables
  /// The standard deviation of the initial learned positions and class token of images; 0:
  /// init_std.
  double position_std = 0;
  bool scale_residual_init = true;  ///< residual projections start with init_std / sqrt(2 layers)
  /// Width of the model on which learning rates are tuned, from which this one's, and all that
  /// depends on them, follow (param::Parametrization); 0: the standard parametrization.
  Dim mup_base_width = 0;
  Dim mup_base_head_width = 0;  ///< its head width, with mup_base_width; 0: as here
  /// The format of the blocks' matrices if they are frozen. int4 has groups of 64.
  param::StorageFormat frozen_format = param::StorageFormat::compute;
  std::int64_t bos_token = -1;  ///< id that begins a text, for exports; -1: as the vocabulary says
  /// Ids that end a text, for exports; empty: as the vocabulary says.
  std::vector<std::int64_t> eos_tokens = {};
  nn::ExpertsConfig experts = {};
  ImageSpec image = {};
  /// Stochastic depth (Huang et al. 2016): the share of samples that skip a sublayer of the last
  /// block; the rule gives the share of earlier ones.
  double drop_path = 0;
  nn::DropPathRule drop_path_rule = nn::DropPathRule::linear;
  double label_smoothing = 0;  ///< share of a target that all classes divide evenly

  [[nodiscard]] Dim head_width() const {
    return own_head_width > 0 ? own_head_width : width / heads;
  }
  /// The width of all queries together, and of all keys or values.
  [[nodiscard]] Dim query_width() const { return heads * head_width(); }
  [[nodiscard]] Dim kv_width() const { return kv_heads * head_width(); }
  /// True if the stream reaches the head without a norm, which is then put before it.
  [[nodiscard]] bool has_final_norm() const { return norm_place != NormPlace::post; }
  [[nodiscard]] bool has_qkv_bias() const { return bias ? !unbiased_qkv : qkv_bias; }
  [[nodiscard]] nn::MatrixInit matrix_init() const { return {init, static_cast<float>(init_std)}; }
  [[nodiscard]] bool is_of_images() const { return family == Family::vit; }
  /// embedding_scale, or the value that its 0 stands for.
  [[nodiscard]] double scale_of_embeddings() const;
  [[nodiscard]] param::Parametrization parametrization() const;
  /// scores.scale, or the parametrization's value if it is 0.
  [[nodiscard]] double scale_of_scores() const;
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// The defaults of a family.
[[nodiscard]] ModelSpec preset(Family family);

/// Every choice that the model's results depend on, "key=value key=value ...": two models are the
/// same if this is. Dropout, initial values, the attention path and the ids for exports are not
/// part of it. A scale of embeddings is named only if it is not the positions' own.
[[nodiscard]] std::string identity(const ModelSpec& spec);
/// The choices that differ between two identities, "key=value" of each; "key=default" if one
/// does not name it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> differing_choices(
    const std::string& a, const std::string& b);

/// Number of parameters, tied tables counted once.
[[nodiscard]] std::int64_t parameter_count(const ModelSpec& spec);
/// Parameters in the matrix products of a token: without an untied input table and positions, a
/// tied table once.
[[nodiscard]] std::int64_t matmul_parameter_count(const ModelSpec& spec);
/// Multiplications per token of the patch embedding (0 of tokens of text, which are looked up), of
/// the block of a layer, with attention at the full context, over the pairs that its mask leaves,
/// and of the head.
[[nodiscard]] double embedding_cost(const ModelSpec& spec);
[[nodiscard]] double block_cost(const ModelSpec& spec, Dim layer);
[[nodiscard]] double head_cost(const ModelSpec& spec);
/// Model FLOPs of forward and backward per token at sequence length T: 6 N + 6 L C T counting the
/// causal half of attention, of layers with a window the pairs within; 6 N + 12 L C T counting all
/// of it, as images always do. Of an image
/// the patches are embedded and one row goes through the head.
[[nodiscard]] double flops_per_token(const ModelSpec& spec, Dim T, bool causal);
/// The causal ones of tokens that attend to their own document alone.
[[nodiscard]] double flops_per_token(const ModelSpec& spec, Dim T, const KeyShares& documents);

}  // namespace hyperslab::model
