// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/query_key_norm.hpp"
#include "hyperslab/nn/sublayer.hpp"

namespace hyperslab::nn {

/// Self-attention with packed queries, keys and values. The heads are distributed over the tensor
/// group; if there are fewer key-value heads than ranks, several ranks hold the same one.
class Attention final : public Sublayer {
 public:
  struct Slot {
    View qkv;            ///< (B, T, packed), normalized and rotated
    View out;            ///< (B, T, H Dh)
    View log_sum_exp;    ///< (B, H, T); absent in the reference path
    View probabilities;  ///< (B, H, T, T); reference path only
    View dy;             ///< stream; with a split backward only
    View d_qkv;          ///< (B, T, packed); a slot's own with a split backward
    View qkv_reduced;    ///< (B, T, ranks) of the adapters; absent without them
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
  [[nodiscard]] ops::KeyValueCache cache(const TextPass& texts, Dim samples) const;
  [[nodiscard]] ops::AttentionScores scores(const BatchInfo& batch, View sink_weights) const;
  void core_forward(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] View attended_bias_gradient(const BackwardPass& pass) const;
  void core_backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View dbias) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  BlockConfig config_;
  ops::HeadLayout heads_;
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
