// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/mlp.hpp"

namespace hyperslab::nn {

/// A mixture of experts (Shazeer et al. 2017): of `count` feed-forward networks a token passes
/// through the `active` ones that a router chooses, and their outputs are summed by its weights. No
/// token is left out. Shared experts are one network besides that all tokens pass.
///
/// Tokens are ordered by expert, and each expert multiplies its rows. A weight of the router acts
/// on the input of an expert's second product, so that no output of an expert is kept, and sums of
/// a token's experts are taken in the order of the experts. Scores are f32 or better. A tensor
/// group splits the inner width of every expert; the router's gradient is then a term of a sum.
class Experts final : public Sublayer {
 public:
  /// Below N are the tokens, R = N active the rows of all experts.
  struct Slot {
    View logits;       ///< (N, count) f32 or better
    View chosen;       ///< (N, active) i32: a token's experts, ascending
    View weights;      ///< (N, active)
    View statistics;   ///< (B, ops::router_statistics_width()); absent without training
    View first_rows;   ///< (count + 1) i32
    View pairs;        ///< (R) i32
    View rows;         ///< (N, active) i32
    View row_weights;  ///< (R): the weights in the order of rows
    View pre;          ///< (R, F) before the activation, gated: (R, 2F); backward overwrites it
    View activated;    ///< (R, F) with the weights
    View dy;           ///< stream; with a split backward only
    View dlogits;      ///< (N, count) in the compute dtype
    // Memory of all slots:
    View gathered;        ///< (R, C)
    View d_activated;     ///< (R, F)
    View d_row_weights;   ///< (R)
    View d_weights;       ///< (N, active)
    View d_wide_logits;   ///< (N, count)
    View shared_out;      ///< stream; absent without shared experts
    SublayerSlot shared;  ///< of Mlp
  };
  Experts(param::ParamStore& params, const std::string& name, const BlockConfig& config,
          SublayerPlace place);

  [[nodiscard]] SublayerSlot plan(Arena& activations, const SublayerMemory& shared,
                                  const ActivationSpec& spec,
                                  const std::string& label) const override;
  [[nodiscard]] SublayerSlot for_tokens(const SublayerSlot& slot,
                                        const TokenCount& count) const override;
  void forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& slot,
               View y) const override;
  void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass, const SublayerSlot& slot,
                View dx) const override;
  /// Updates the selection bias, if there is one.
  void after_step(Context& ctx, CView loads, const ops::StepState* state) const override;

 private:
  void choose(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const;
  void count_losses(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  void backward_router(Context& ctx, const BackwardPass& pass, const Slot& slot) const;
  void backward_rows(Context& ctx, CView dy, const BackwardPass& pass, const Slot& slot) const;
  void weight_gradient(Context& ctx, const param::FusedParam& weight, CView dy, CView x,
                       const BackwardPass& pass, const Slot& slot) const;
  void router_gradient(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  void backward_input(Context& ctx, CView dy, CView x, const BackwardPass& pass, const Slot& slot,
                      View dx) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;

  BlockConfig config_;
  ops::RouterRule rule_;
  Dim index_ = 0;             ///< number of the layer among those with experts
  Dim width_ = 0;             ///< inner width of an expert on this rank
  param::FusedParam router_;  ///< (count, C)
  param::FusedParam bias_;    ///< (count) that chooses, and does not weigh; may be absent
  param::FusedParam up_;  ///< (count 2F, C), an expert's gate before its up; ungated: (count F, C)
  param::FusedParam down_;  ///< (count C, F)
  std::unique_ptr<Mlp> shared_;
};
extern const SublayerType kExperts;

}  // namespace hyperslab::nn
