// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "hyperslab/nn/query_key_norm.hpp"
#include "hyperslab/nn/sublayer.hpp"

namespace hyperslab::nn {

/// Self-attention with packed queries, keys and values. The heads are distributed over the tensor
/// group; if there are fewer key-value heads than ranks, several ranks hold the same one. In a
/// context group each rank computes the attention of a part of these heads over all tokens.
class Attention final : public Sublayer {
 public:
  /// Values of this rank's T tokens, for all of its heads; in a context group of one the views of
  /// the same name in the slot.
  struct Rows {
    View qkv;          ///< (B, T, packed); with others in the context group of all slots
    View out;          ///< (B, T, H Dh)
    View d_attention;  ///< (B, T, H Dh), of all slots
    View d_qkv;        ///< (B, T, packed); a slot's own with a split backward
  };
  /// Values of all tokens, for the heads whose attention this rank computes; T counts those of all
  /// context ranks here.
  struct Slot {
    View qkv;            ///< (B, T, packed), normalized and rotated
    View out;            ///< (B, T, H Dh)
    View log_sum_exp;    ///< (B, H, T); absent in the reference path
    View probabilities;  ///< (B, H, T, T); reference path only
    View dy;             ///< stream; with a split backward only
    View d_qkv;          ///< (B, T, packed); a slot's own with a split backward
    Rows rows;
    ContextGroup::Buffers exchange;  ///< shared by all slots; absent in a context group of one
    View qkv_reduced;                ///< (B, own tokens, ranks) of the adapters; absent without
    View output_reduced;
    View qkv_amax;  ///< LinearPass::amax
    View output_amax;
    QueryKeyNorm::Slot qk_norm;
    View sink_weights;     ///< (B, H, T); absent without sinks
    View d_attention;      ///< (B, T, H Dh), of all slots
    View d_probabilities;  ///< (B, H, T, T), of all slots; reference path only
  };
  Attention(param::ParamStore& params, const std::string& name, const BlockConfig& config,
            SublayerPlace place);

  [[nodiscard]] SublayerSlot plan(Arena& activations, const SublayerMemory& shared,
                                  const ActivationSpec& spec,
                                  const std::string& label) const override;
  [[nodiscard]] SublayerSlot for_tokens(const SublayerSlot& slot,
                                        const TokenCount& count) const override;
  void plan_texts(Arena& memory, const TextRoom& room, DType compute,
                  const std::string& label) override;
  /// With texts, new tokens attend to the cache and to each other; that needs a causal mask, as
  /// without one earlier tokens would have to be computed again.
  void forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& slot,
               View y) const override;
  void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass, const SublayerSlot& slot,
                View dx) const override;
  [[nodiscard]] View output_bias_gradient() const override { return output_.bias_gradient(); }
  [[nodiscard]] bool describe(int branch, const ForwardPass& pass, const SublayerSlot& slot,
                              ops::DecodeBlock& block, ops::DecodeStream& stream) const override;

 private:
  [[nodiscard]] ops::Dropout probability_dropout(const BatchInfo& batch) const;
  enum class Adapted : std::uint8_t { qkv = 0, output = 1 };  ///< numbers of adapter_site()
  [[nodiscard]] LinearPass linear_pass(Adapted linear, const BatchInfo& batch,
                                       const Scratch& scratch, const Slot& slot) const;
  [[nodiscard]] std::array<Dim, 3> sections() const;
  template <class AnyView>
  [[nodiscard]] AnyView core_part(AnyView of_heads) const;
  void plan_core(Arena& activations, const ActivationSpec& spec, const std::string& label,
                 Slot& slot) const;
  void rotate(Context& ctx, const RopeTables& tables, ops::Rotation rotation, View qkv) const;
  [[nodiscard]] ops::KeyValueCache cache(const TextPass& texts, Dim samples) const;
  [[nodiscard]] ops::AttentionScores scores(const BatchInfo& batch, View sink_weights) const;
  void core_forward(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] View attended_bias_gradient(const BackwardPass& pass) const;
  void sinks_backward(Context& ctx, Accumulate accumulate, const Slot& slot) const;
  void rows_backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View dbias) const;
  void core_backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View dbias) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  BlockConfig config_;
  ops::HeadLayout heads_;       ///< those of this tensor rank
  ops::HeadLayout core_heads_;  ///< those whose attention this rank computes
  SublayerPlace place_;
  Linear qkv_;
  QueryKeyNorm qk_norm_;
  param::FusedParam sinks_;
  Linear output_;
  TextRoom room_;
  View cached_keys_;    ///< (pages, tokens of a page, H_kv Dh), for generation
  View cached_values_;  ///< likewise
};
extern const SublayerType kAttention;

}  // namespace hyperslab::nn
