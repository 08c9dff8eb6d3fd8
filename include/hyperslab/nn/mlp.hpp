// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/sublayer.hpp"

namespace hyperslab::nn {

/// The feed-forward network, gated or not; its inner width is split over the tensor group. With
/// BlockConfig::mlp_rows the stream passes in pieces of rows, forward and backward: backward
/// computes a piece's wide values again, so that they exist for one piece at a time.
class Mlp final : public Sublayer {
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
    /// (B, T, F) of all slots; absent if a product takes the activation's derivative.
    View d_activated;
    /// The part for a piece of so many rows.
    [[nodiscard]] Slot for_piece(Dim rows) const;
  };
  Mlp(param::ParamStore& params, const std::string& name, const BlockConfig& config,
      SublayerPlace place);

  [[nodiscard]] SublayerSlot plan(Arena& activations, const SublayerMemory& shared,
                                  const ActivationSpec& spec,
                                  const std::string& label) const override;
  /// A slot that holds a piece alone is returned as it is.
  [[nodiscard]] SublayerSlot for_tokens(const SublayerSlot& slot,
                                        const TokenCount& count) const override;
  void forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& slot,
               View y) const override;
  /// False if the second layer leaves backward something. For pieces nothing is computed.
  [[nodiscard]] bool repeat(Context& ctx, CView x, const ForwardPass& pass,
                            const SublayerSlot& slot) const override;
  void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass, const SublayerSlot& slot,
                View dx) const override;
  [[nodiscard]] View output_bias_gradient() const override { return down_.bias_gradient(); }
  [[nodiscard]] bool describe(int branch, const ForwardPass& pass, const SublayerSlot& slot,
                              ops::DecodeBlock& block, ops::DecodeStream& stream) const override;

 private:
  enum class Adapted : std::uint8_t { up = 2, down = 3 };  ///< numbers of adapter_site()
  [[nodiscard]] LinearPass linear_pass(Adapted linear, const BatchInfo& batch,
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
  [[nodiscard]] View activated_bias_gradient(const BackwardPass& pass, const Slot& slot) const;
  void backward_activation(Context& ctx, CView dy, const BackwardPass& pass, const Slot& slot,
                           const ops::ActivationGradients& gradients) const;
  void activate(Context& ctx, const Slot& slot) const;
  [[nodiscard]] ops::Fp8Amax activated_amax() const;
  [[nodiscard]] View gradient_of_pre(BackwardPart part, const Slot& slot) const;
  BlockConfig config_;
  SublayerPlace place_;
  Dim ffn_width_ = 0;  ///< columns on this rank
  Linear up_;
  Linear down_;
};
extern const SublayerType kMlp;

/// Sizes of the values inside a feed-forward network: of a microbatch, or of its largest piece.
[[nodiscard]] ActivationSpec mlp_spec(const BlockConfig& config, const ActivationSpec& spec);

}  // namespace hyperslab::nn
