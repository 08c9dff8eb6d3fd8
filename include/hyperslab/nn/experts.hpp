// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/expert_linear.hpp"
#include "hyperslab/nn/mlp.hpp"

namespace hyperslab::nn {

/// A mixture of experts (Shazeer et al. 2017): of `count` feed-forward networks a token passes
/// through the `active` ones that a router chooses, and their outputs are summed by its weights. No
/// token is left out. Shared experts are one network besides that all tokens pass.
///
/// Rows, pairs of a token and one of its experts, are ordered by expert, and each expert multiplies
/// its rows. A weight of the router acts on the input of an expert's second product, so that no
/// output of an expert is kept, and a token's outputs are summed in the order of the experts.
/// Scores are f32 or better. A tensor group splits the inner width of every expert; the router's
/// gradient is then a term of a sum. Ranks of an expert group hold other experts and exchange rows.
class Experts final : public Sublayer {
 public:
  /// Memory that all microbatches use in turn. N are the tokens of one, and "here" are the rows
  /// that this rank's experts get.
  struct Memory {
    ExpertExchange::Room room;
    View values_here;       ///< (here, C): inputs, outputs, or gradients of either
    View activated;         ///< (here, F); with Recompute::selective only
    View d_activated;       ///< (here, F)
    View d_weights_here;    ///< (here)
    View reduced_gradient;  ///< (here, most ranks of a product's adapters); absent without
    View d_weights;         ///< (N, active)
    View d_wide_logits;     ///< (N, count)
    View shared_out;        ///< stream; absent without shared experts
    SublayerMemory shared;  ///< the shared network's
  };
  /// Values by row of this rank's experts.
  struct Rows {
    View weights;
    View pre;        ///< (here, F) before the activation, gated: (here, 2F); backward overwrites it
    View activated;  ///< (here, F) with the weights
    View values;     ///< as Memory has them
    View d_activated;
    View d_weights;
    View up_reduced;    ///< (here, ranks) between an expert's adapters; absent without
    View down_reduced;  ///< likewise
    View reduced_gradient;
    Dim most = 0;  ///< rows that may come
    [[nodiscard]] Rows first(Dim rows) const;
    [[nodiscard]] ExpertRows of_up(const ExpertExchange::Way& way) const {
      return {way.first_rows, most, up_reduced, reduced_gradient};
    }
    [[nodiscard]] ExpertRows of_down(const ExpertExchange::Way& way) const {
      return {way.first_rows, most, down_reduced, reduced_gradient};
    }
  };
  struct Slot {
    View logits;      ///< (N, count) f32 or better
    View chosen;      ///< (N, active) i32: a token's experts, ascending
    View weights;     ///< (N, active)
    View statistics;  ///< (groups of samples, ops::router_statistics_width()); absent without
                      ///< training
    ExpertExchange::Way way;
    Rows here;     ///< for the most rows that may come
    View dy;       ///< stream; with a split backward only
    View dlogits;  ///< (N, count) in the compute dtype
    Memory memory;
    SublayerSlot shared;  ///< the shared network's
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
  [[nodiscard]] ops::RouterLosses losses(const Slot& slot) const;
  void count_losses(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] Rows plan_rows(Arena& activations, const Memory& memory, const ActivationSpec& spec,
                               const std::string& label) const;
  [[nodiscard]] Rows rows_here(const Context& ctx, const Slot& slot) const;
  void backward_router(Context& ctx, const BackwardPass& pass, const Slot& slot) const;
  /// Tokens' rows of a backward pass on their way.
  struct Arrivals {
    ExpertExchange::Transfer gradients;
    ExpertExchange::Transfer inputs;
  };
  void backward_rows(Context& ctx, const Arrivals& from, const BackwardPass& pass, const Slot& slot,
                     const Rows& here) const;
  void backward_up(Context& ctx, CView all, const Arrivals& from, const BackwardPass& pass,
                   const Slot& slot, const Rows& here) const;
  void backward_input(Context& ctx, CView dy, CView x, const BackwardPass& pass, const Slot& slot,
                      View dx) const;
  void backward_weight(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;

  BlockConfig config_;
  ops::RouterRule rule_;
  Dim index_ = 0;             ///< number of the layer among those with experts
  Dim width_ = 0;             ///< inner width of an expert on this rank
  param::FusedParam router_;  ///< (count, C)
  param::FusedParam bias_;    ///< (count) that chooses, and does not weigh; may be absent
  ExpertLinear up_;           ///< an expert's gate and up, (2F, C); ungated: (F, C)
  ExpertLinear down_;         ///< (C, F)
  std::unique_ptr<Mlp> shared_;
};
extern const SublayerType kExperts;

}  // namespace hyperslab::nn
