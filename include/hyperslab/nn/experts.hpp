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
  /// Values that a part of rows needs until its backward pass.
  struct Kept {
    View pre;        ///< (part, F) before the activation, gated: (part, 2F); backward overwrites it
    View activated;  ///< (part, F) with the weights
    View up_reduced;    ///< (part, ranks) between an expert's adapters; absent without
    View down_reduced;  ///< likewise
  };
  /// Memory that all microbatches use in turn. N are the tokens of one, "here" are the rows that
  /// this rank's experts get, and "part" are those that memory holds at once.
  struct Memory {
    ExpertExchange::Room room;
    View values_here;       ///< (part, C): inputs, outputs, or gradients of either
    View activated;         ///< (part, F); with Recompute::selective only
    Kept more;              ///< values of parts after the first; absent if one part has all rows
    View d_activated;       ///< (part, F)
    View d_weights_here;    ///< (here)
    View reduced_gradient;  ///< (part, most ranks of a product's adapters); absent without
    View d_weights;         ///< (N, active)
    View d_wide_logits;     ///< (N, count)
    View shared_out;        ///< stream; absent without shared experts
    SublayerMemory shared;  ///< the shared network's
  };
  /// Values by row of this rank's experts, of all rows or a part.
  struct Rows {
    View weights;    ///< all rows' or a part's
    View d_weights;  ///< likewise
    Kept kept;
    View values;  ///< as Memory has them
    View d_activated;
    View reduced_gradient;
    /// The rows [first, first + count), whose weights begin at `first`; kept: of their part.
    [[nodiscard]] Rows part(Dim first, Dim count, const Kept& kept) const;
  };
  struct Slot {
    View logits;      ///< (N, count) f32 or better
    View chosen;      ///< (N, active) i32: a token's experts, ascending
    View weights;     ///< (N, active)
    View statistics;  ///< (groups of samples, ops::router_statistics_width()); absent without
                      ///< training
    ExpertExchange::Way way;
    Rows here;     ///< the first part's, with the weights of the most rows that may come
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
  /// A part of rows on its way through the experts.
  struct Part {
    ExpertExchange::Part rows;
    Rows here;
    Dim most = 0;  ///< rows that a part may have
    [[nodiscard]] ExpertRows of_up() const {
      return {rows.first_rows, most, here.kept.up_reduced, here.reduced_gradient};
    }
    [[nodiscard]] ExpertRows of_down() const {
      return {rows.first_rows, most, here.kept.down_reduced, here.reduced_gradient};
    }
    [[nodiscard]] ops::WeightedRows weighted() const {
      return {here.kept.pre, here.weights, rows.used};
    }
  };
  /// Tokens' rows of a backward pass on their way.
  struct Arrivals {
    ExpertExchange::Transfer gradients;
    ExpertExchange::Transfer inputs;
    CView all;  ///< inputs of all tensor ranks; absent until they are on their way
  };
  void choose(Context& ctx, CView x, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] ops::RouterLosses losses(const Slot& slot) const;
  void count_losses(Context& ctx, const ForwardPass& pass, const Slot& slot) const;
  [[nodiscard]] Rows plan_rows(Arena& activations, const Memory& memory, const ActivationSpec& spec,
                               const std::string& label) const;
  [[nodiscard]] Dim rows_here(const Context& ctx, const Slot& slot) const;
  template <class Work>
  void for_parts(const Context& ctx, const Slot& slot, Work&& work) const;
  [[nodiscard]] ops::GatheredRows rows_of(Context& ctx, const Slot& slot, const Part& part,
                                          ExpertExchange::Transfer& tokens) const;
  void activate(Context& ctx, const Slot& slot, const Part& part,
                ExpertExchange::Transfer& inputs) const;
  void start_inputs(Context& ctx, CView x, const Scratch& scratch, const Slot& slot,
                    Arrivals& from) const;
  [[nodiscard]] Arrivals start_backward(Context& ctx, CView dy, CView x, const Scratch& scratch,
                                        const Slot& slot) const;
  void backward_activated(Context& ctx, const BackwardPass& pass, const Slot& slot,
                          const Part& part, Arrivals& from) const;
  void backward_router(Context& ctx, const BackwardPass& pass, const Slot& slot) const;
  void router_gradient(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot) const;
  void weight_gradients(Context& ctx, CView x, const BackwardPass& pass, const Slot& slot,
                        Arrivals& from) const;
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
