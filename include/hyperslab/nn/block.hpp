// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "hyperslab/nn/drop_path_rule.hpp"
#include "hyperslab/nn/linear.hpp"
#include "hyperslab/nn/norm.hpp"
#include "hyperslab/nn/query_key_norm.hpp"
#include "hyperslab/nn/recompute.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::nn {

/// The part of a backward pass: gradients of inputs, of weights, or both as they come.
enum class BackwardPart : std::uint8_t { both, input, weight };

/// The configuration of a transformer block. Sizes are the whole model's.
struct BlockConfig {
  Dim width = 0;
  ops::HeadLayout heads;
  ops::AttentionScores scores;  ///< without first_keys, which a batch has
  Dim ffn_width = 0;
  ops::Activation activation = ops::Activation::gelu_tanh;
  ops::NormKind norm = ops::NormKind::layernorm;
  bool pre_norm = true;  ///< false: normalize after the residual addition
  /// The norm of a sublayer's output before it is added; with pre_norm only.
  ops::NormKind output_norm = ops::NormKind::none;
  bool parallel = false;  ///< both sublayers read the block's input; with pre_norm only
  float norm_eps = 1e-5F;
  bool bias = true;
  bool qkv_bias = true;
  QkNorm qk_norm = QkNorm::none;  ///< width: of a tensor group of one rank
  bool rope = false;
  bool keep_probabilities = false;  ///< the reference attention
  bool sinks = false;               ///< a learned logit a head in attention's softmax
  float dropout = 0;
  float drop_path = 0;  ///< rate of the last block
  DropPathRule drop_path_rule = DropPathRule::linear;
  int layers = 1;          ///< blocks of the model
  std::uint64_t seed = 0;  ///< seed of the masks of dropout and drop_path
  MatrixInit init;
  MatrixInit residual_init;  ///< for matrices that add to the residual stream
  TensorGroup group;
  Recompute recompute = Recompute::none;
  /// The most rows, of all ranks of the group, that pass through the feed-forward network at once;
  /// backward then computes all but its input again. 0: all rows pass at once, and all is kept.
  Dim mlp_rows = 0;
  bool split_backward = false;  ///< slots keep operands of backward's weight half
  AdapterConfig adapter;
  Fp8Config fp8;
};

/// Rotary tables shared by all layers: (T_max, D / 2) for the D dimensions of a head that are
/// turned; absent without rotary positions.
using RopeTables = ops::RotaryTables;

/// Inputs that differ from microbatch to microbatch and are no activations.
struct BatchInfo {
  CView sample_position;                  ///< (B) i64
  const ops::StepState* state = nullptr;  ///< on the device
  bool dropout = false;                   ///< true if dropout acts in this pass
  CView first_keys{};  ///< (B, T) i32: where the document of every token begins; absent: at 0
};

/// Memory shared by all blocks of a stage, for one microbatch at a time. "Stream" stands for the
/// shape of the residual stream, (B, T, C) or this rank's rows of it; H, F and packed widths are
/// this rank's.
struct Scratch {
  View delta;             ///< stream: output of attention or mlp on its way into the residual
  View d_mid;             ///< stream: gradient of a sublayer's input
  View sublayer;          ///< stream: a second sublayer's output; of parallel ones only
  View d_sublayer;        ///< stream: gradient of a sublayer's output before its norm, or of the
                          ///< stream that both of two parallel ones read; absent without either
  View d_masked;          ///< stream: gradient through dropout and drop_path; absent without
  View d_attention;       ///< (B, T, H Dh)
  View d_qkv;             ///< (B, T, packed)
  View d_activated;       ///< (B, T, F), with BlockConfig::mlp_rows those of a piece; absent if a
                          ///< product takes the activation's derivative
  View d_probabilities;   ///< (B, H, T, T); reference attention only
  View gathered;          ///< (B, T, C): all rows; only if the stream is cut by rows
  View partial;           ///< (B, T, C): a term of a sum over the tensor group; likewise
  View adapter_gradient;  ///< (B, T, most ranks of a layer): between a layer's adapters
  View rounded_gradient;  ///< bytes: between a layer's products in 8-bit floats
  View norm_out;          ///< stream: only with Recompute::selective
  View activated;         ///< (B, T, F): only with Recompute::selective
  /// The part that generation of so many tokens uses, in a group of one: delta, sublayer.
  [[nodiscard]] Scratch for_tokens(const TokenCount& count) const;
  /// The part that a feed-forward network uses for a piece of so many rows.
  [[nodiscard]] Scratch for_piece(Dim rows) const;
};
/// Sizes and types of one microbatch's activations.
struct ActivationSpec {
  Dim B = 1;
  Dim T = 1;
  DType compute = DType::f32;
  DType statistics = DType::f32;  ///< dtype of norms and attention
};

/// Sizes of the values inside a feed-forward network: of a microbatch, or of its largest piece.
[[nodiscard]] ActivationSpec mlp_spec(const BlockConfig& config, const ActivationSpec& spec);

/// `training`: also takes backward's memory.
[[nodiscard]] Scratch plan_scratch(Arena& scratch, const BlockConfig& config,
                                   const ActivationSpec& spec, bool training);

/// Arguments of a forward pass besides its operands.
struct ForwardPass {
  const RopeTables& rope;
  const BatchInfo& batch;
  const Scratch& scratch;
  /// Generation: the tokens follow cache->past earlier ones, whose keys and values the cache holds.
  std::optional<ops::KeyValueCache> cache = std::nullopt;
  Fp8Weights fp8_weights = Fp8Weights::rounded;
  bool repeated = false;  ///< backward follows, and needs what the earlier pass did not keep

  /// Position of the first token in its sample.
  [[nodiscard]] ops::TokenPosition first_position() const {
    return cache ? cache->past : ops::TokenPosition();
  }
  /// The pass of a linear layer's forward, which learns whether to round its weights.
  [[nodiscard]] LinearPass with_fp8_weights(LinearPass linear) const {
    linear.fp8_weights = fp8_weights;
    return linear;
  }
};

/// Arguments of a backward pass besides its operands.
struct BackwardPass {
  const RopeTables& rope;
  const BatchInfo& batch;
  const Scratch& scratch;
  Accumulate accumulate = Accumulate::no;  ///< for gradients of parameters
  BackwardPart part = BackwardPart::both;
  /// True if the sublayers compute no gradients of their outputs' biases (StreamBiases).
  bool skips_output_biases = false;
  /// The pass of a linear layer's backward_input, which learns whether backward_weight follows.
  [[nodiscard]] LinearPass before_weights(LinearPass linear) const {
    if (part == BackwardPart::both) linear.weights_follow = accumulate;
    // By this microbatch's forward pass, or an earlier one's.
    linear.fp8_weights = Fp8Weights::kept;
    return linear;
  }
};

/// The dropout of elements that lie in the residual stream, whose rows may be cut.
[[nodiscard]] ops::Dropout on_stream(const TensorGroup& group, ops::Dropout dropout, CView x);

/// A layer's linear layers, for the dropout of their adapters.
enum class AdaptedLinear : std::uint8_t { qkv = 0, output = 1, up = 2, down = 3 };
/// The dropout of the input of a linear layer's adapters in this pass.
[[nodiscard]] ops::Dropout adapter_dropout(const BlockConfig& config, int layer,
                                           AdaptedLinear linear, const BatchInfo& batch);
/// Memory for the values between A and B of a layer's adapters; absent without adapters.
[[nodiscard]] View take_reduced(Arena& activations, const ActivationSpec& spec,
                                const Linear& linear, const std::string& label);
/// Memory for LinearPass::amax; absent where it is of no use, and in a tensor group, which may
/// multiply rows in pieces.
[[nodiscard]] View take_amax(Arena& activations, const TensorGroup& group, const Linear& linear,
                             const std::string& label);

/// Self-attention with packed queries, keys and values. The heads are distributed over the tensor
/// group; if there are fewer key-value heads than ranks, several ranks hold the same one.
class Attention {
 public:
  struct Slot {
    View qkv;            ///< (B, T, packed), normalized and rotated
    View out;            ///< (B, T, H Dh)
    View log_sum_exp;    ///< (B, H, T); absent in the reference path
    View probabilities;  ///< (B, H, T, T); reference path only
    View dy;             ///< stream; with a split backward only
    View d_qkv;          ///< (B, T, packed); with a split backward only
    View qkv_reduced;    ///< (B, T, ranks) of the adapters; absent without them
    View output_reduced;
    View qkv_amax;  ///< LinearPass::amax
    View output_amax;
    QueryKeyNorm::Slot qk_norm;
    View sink_weights;  ///< (B, H, T); absent without sinks
    /// The slot of generation of so many tokens, without the views that only backward reads.
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
  };
  Attention() = default;
  Attention(param::ParamStore& params, const std::string& name, const BlockConfig& config,
            int layer);

  Slot plan(Arena& activations, const ActivationSpec& spec, const std::string& label) const;
  /// x and y have the shape of the stream. Enqueues on ctx. With a cache, new tokens attend to it
  /// and to each other; that needs a causal mask, as without one earlier tokens would have to be
  /// computed again.
  void forward(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot, View y) const;
  /// dy -> dx, not aliased; dx may be absent if nothing before trains. x is forward's input.
  /// BackwardPart::weight reads x and the slot only.
  void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass, const Slot& slot,
                View dx) const;
  /// Heads of this rank.
  [[nodiscard]] const ops::HeadLayout& heads() const { return heads_; }
  /// Absent if the output has no bias, or a frozen one.
  [[nodiscard]] View output_bias_gradient() const { return output_.bias_gradient(); }
  /// Sets the operands of attention for a block's forward pass on a cache. Returns whether that is
  /// all that forward() does.
  [[nodiscard]] bool describe(const ForwardPass& pass, ops::DecodeBlock& block) const;

 private:
  [[nodiscard]] ops::Dropout probability_dropout(const BatchInfo& batch) const;
  [[nodiscard]] LinearPass linear_pass(AdaptedLinear linear, const BatchInfo& batch,
                                       const Scratch& scratch, const Slot& slot) const;
  [[nodiscard]] ops::AttentionScores scores(const BatchInfo& batch, View sink_weights) const;
  void core_forward(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] View attended_bias_gradient(const BackwardPass& pass) const;
  void core_backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View d_qkv,
                     View dbias) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  BlockConfig config_;
  ops::HeadLayout heads_;
  int layer_ = 0;
  Linear qkv_;
  QueryKeyNorm qk_norm_;
  param::FusedParam sinks_;
  Linear output_;
};

/// The feed-forward network, gated or not; its inner width is split over the tensor group. With
/// BlockConfig::mlp_rows the stream passes in pieces of rows, forward and backward: backward
/// computes a piece's wide values again, so that they exist for one piece at a time.
class Mlp {
 public:
  /// Values inside the network: a microbatch's, or a piece's.
  struct Slot {
    View pre;        ///< (B, T, F) before the activation, gated: (B, T, 2F); backward overwrites it
    View activated;  ///< (B, T, F)
    View dy;         ///< stream; with a split backward only
    View up_reduced;  ///< (B, T, ranks) of the adapters; absent without them
    View down_reduced;
    View up_amax;  ///< LinearPass::amax
    View down_amax;
    /// The part for so many tokens; a slot that holds a piece alone is returned as it is.
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
    /// The part for a piece of so many rows.
    [[nodiscard]] Slot for_piece(Dim rows) const;
  };
  Mlp() = default;
  Mlp(param::ParamStore& params, const std::string& name, const BlockConfig& config, int layer);

  Slot plan(Arena& activations, const Scratch& scratch, const ActivationSpec& spec,
            const std::string& label) const;
  void forward(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot, View y) const;
  /// Computes again, without the second layer's product, what backward needs and a forward pass did
  /// not keep; for pieces that is nothing. False if the second layer leaves backward something:
  /// then forward() is to be called.
  [[nodiscard]] bool repeat(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const;
  void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass, const Slot& slot,
                View dx) const;
  /// As Attention::describe.
  [[nodiscard]] bool describe(ops::DecodeBlock& block) const;
  /// As Attention::output_bias_gradient.
  [[nodiscard]] View output_bias_gradient() const { return down_.bias_gradient(); }

 private:
  [[nodiscard]] LinearPass linear_pass(AdaptedLinear linear, const BatchInfo& batch,
                                       const Scratch& scratch, const Slot& slot) const;
  struct Piece;
  template <class Work>
  void for_pieces(Dim rows, const Slot& slot, const Scratch& scratch, Work&& work) const;
  void expand(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const;
  void forward_at_once(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot,
                       View y) const;
  void backward_at_once(Context& ctx, CView dy, CView x, const BackwardPass& pass, const Slot& slot,
                        View dx) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  [[nodiscard]] View activated_bias_gradient(const BackwardPass& pass) const;
  void backward_activation(Context& ctx, CView dy, const BackwardPass& pass, const Slot& slot,
                           const ops::ActivationGradients& gradients) const;
  void activate(Context& ctx, const Slot& slot) const;
  [[nodiscard]] ops::Fp8Amax activated_amax() const;
  [[nodiscard]] View gradient_of_pre(BackwardPart part, const Slot& slot) const;
  BlockConfig config_;
  int layer_ = 0;
  Dim ffn_width_ = 0;  ///< columns on this rank
  Linear up_;
  Linear down_;
};

/// The residual stream between two blocks: its value is residual + delta. delta is absent, or lies
/// in Scratch::delta and is added by the next norm.
struct ResidualStream {
  CView residual;
  CView delta;
};

/// Attention and mlp with their norms and residual additions.
class Block {
 public:
  struct Slot {
    Norm::Slot norm1;
    Attention::Slot attention;
    Norm::Slot norm2;
    Mlp::Slot mlp;
    View attention_output;  ///< stream: before output_norm; absent without
    Norm::Slot attention_norm;
    View mlp_output;  ///< likewise
    Norm::Slot mlp_norm;
    /// As Attention::Slot::for_tokens.
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
  };
  Block(param::ParamStore& params, const std::string& name, const BlockConfig& config, int layer);

  /// `adds`: the stream that enters has a delta.
  Slot plan(Arena& activations, const Scratch& scratch, const ActivationSpec& spec, bool adds,
            const std::string& label) const;
  [[nodiscard]] ResidualStream forward(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                       Slot& slot) const;
  /// d: the gradient of the stream that leaves, replaced by the gradient of the one that enters, if
  /// anything before the block trains. input: the
  /// residual that entered forward (read only with norms after the sublayers). BackwardPart::weight
  /// does the rest of BackwardPart::input's work, and leaves d alone.
  void backward(Context& ctx, const BackwardPass& pass, const Slot& slot, CView input,
                View d) const;

 private:
  enum class Sublayer : std::uint8_t { attention = 0, mlp = 1 };
  [[nodiscard]] bool drops() const { return config_.dropout > 0 || drop_path_ > 0; }
  void drop(Context& ctx, const BatchInfo& batch, Sublayer sublayer, CView x, View y) const;
  [[nodiscard]] bool norms_outputs() const { return config_.output_norm != ops::NormKind::none; }
  /// Ends a repeated pass at the feed-forward network, whose output is of use to the next block
  /// alone. False: the pass goes on.
  [[nodiscard]] bool ends_at_mlp(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  /// With adapters the embedding is frozen: the first layer's input needs no gradient.
  [[nodiscard]] bool nothing_before_trains() const { return layer_ == 0 && config_.adapter; }
  [[nodiscard]] bool forward_token(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                   Slot& slot) const;
  [[nodiscard]] ResidualStream forward_before(Context& ctx, ResidualStream in,
                                              const ForwardPass& pass, Slot& slot) const;
  [[nodiscard]] ResidualStream forward_parallel(Context& ctx, ResidualStream in,
                                                const ForwardPass& pass, Slot& slot) const;
  void run_attention(Context& ctx, CView x, const ForwardPass& pass, Slot& slot, View y) const;
  void run_mlp(Context& ctx, CView x, const ForwardPass& pass, Slot& slot, View y) const;
  [[nodiscard]] StreamBiases stream_biases(const BackwardPass& pass) const;
  [[nodiscard]] CView through_norm(Context& ctx, const BackwardPass& pass, const Norm& norm,
                                   const Norm::Slot& slot, CView dy) const;
  void backward_parallel(Context& ctx, const BackwardPass& pass, const Slot& slot, View d) const;
  void backward_before(Context& ctx, const BackwardPass& pass, const Slot& slot, View d) const;
  void backward_after(Context& ctx, const BackwardPass& pass, const Slot& slot, CView input,
                      View d) const;
  [[nodiscard]] CView masked(Context& ctx, const BatchInfo& batch, Sublayer sublayer,
                             const Scratch& scratch, CView d) const;
  BlockConfig config_;
  int layer_ = 0;
  float drop_path_ = 0;
  Norm norm1_;
  Attention attention_;
  Norm norm2_;
  Mlp mlp_;
  Norm attention_norm_;
  Norm mlp_norm_;
};

/// Numbers of the sites of ops::Dropout: a layer has four, [0, 4); the embedding counts as the
/// layer -1. The adapters' sites, one for each AdaptedLinear, lie in the upper half.
[[nodiscard]] constexpr std::uint32_t dropout_site(int layer, int site) {
  return static_cast<std::uint32_t>((layer + 1) * 4 + site);
}
[[nodiscard]] constexpr std::uint32_t dropout_site(int layer, AdaptedLinear linear) {
  return 0x80000000U | dropout_site(layer, static_cast<int>(linear));
}

}  // namespace hyperslab::nn
