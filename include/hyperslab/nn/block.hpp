// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hyperslab/nn/norm.hpp"
#include "hyperslab/nn/sublayer.hpp"

namespace hyperslab::nn {

/// A branch of the residual stream x, which a block adds to it:
///   x = sum_norm(x + drop(output_norm(sublayer(norm(x)))))
/// Norms of NormKind::none leave their input as it is.
struct BranchSpec {
  const SublayerType* sublayer = nullptr;
  ops::NormKind norm = ops::NormKind::none;
  ops::NormKind output_norm = ops::NormKind::none;
  ops::NormKind sum_norm = ops::NormKind::none;
  /// True if the next branch reads the same stream, and both outputs are added at once. Neither has
  /// norms of its output or of the sum.
  bool with_next = false;
};
using BlockList = std::vector<BranchSpec>;

/// The branches of the block of a layer by the place of its norms: the list to which a new sublayer
/// is added.
[[nodiscard]] BlockList block_list(const BlockConfig& config, Dim layer);
/// The branches of all kinds of blocks of a model, one list after the other, for plan_scratch().
[[nodiscard]] BlockList all_branches(const BlockConfig& config);

/// Numbers of the block of a layer of the whole model, for a sequence of so many tokens.
[[nodiscard]] SublayerCounts count_block(const BlockConfig& config, Dim layer, Dim tokens);

/// The memory that all blocks of a list use in turn. `training`: also backward's.
[[nodiscard]] Scratch plan_scratch(Arena& arena, const BlockList& list, const BlockConfig& config,
                                   const ActivationSpec& spec, bool training);

/// The residual stream between two blocks: its value is residual + delta. delta is absent, or lies
/// in Scratch::delta and is added by the next norm.
struct ResidualStream {
  CView residual;
  CView delta;
};

/// A list of branches, each added to the residual stream that the ones before left.
class Block {
 public:
  struct BranchSlot {
    Norm::Slot norm;
    SublayerSlot sublayer;
    View output;  ///< stream: before output_norm; absent without
    Norm::Slot output_norm;
    Norm::Slot sum_norm;
  };
  using Slot = std::vector<BranchSlot>;

  Block(param::ParamStore& params, const std::string& name, const BlockConfig& config, int layer)
      : Block(params, name, config, layer, block_list(config, layer)) {}
  Block(param::ParamStore& params, const std::string& name, const BlockConfig& config, int layer,
        const BlockList& list);

  /// `adds`: the stream that enters has a delta.
  Slot plan(Arena& activations, const Scratch& scratch, const ActivationSpec& spec, bool adds,
            const std::string& label) const;
  /// True if the stream that leaves may have a delta.
  [[nodiscard]] bool leaves_delta() const;
  /// The slot of generation of so many tokens, without the views that only backward reads.
  [[nodiscard]] Slot for_tokens(const Slot& slot, const TokenCount& count) const;
  /// Takes the sublayers' memory of earlier tokens, for generation.
  void plan_texts(Arena& memory, const TextRoom& room, DType compute, const std::string& label);

  [[nodiscard]] ResidualStream forward(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                       Slot& slot) const;
  /// d: the gradient of the stream that leaves, replaced by the gradient of the one that enters, if
  /// anything before the block trains. BackwardPart::weight does the rest of BackwardPart::input's
  /// work, and leaves d alone.
  void backward(Context& ctx, const BackwardPass& pass, const Slot& slot, View d) const;
  /// Sublayer::after_step of all branches.
  void after_step(Context& ctx, CView loads, const ops::StepState* state) const {
    for (const Branch& branch : branches_) branch.sublayer->after_step(ctx, loads, state);
  }

 private:
  struct Branch {
    BranchSpec spec;
    std::string name;       ///< its sublayer's
    std::string norm_name;  ///< its norm's, or the sum's
    Norm norm;
    std::unique_ptr<Sublayer> sublayer;
    Norm output_norm;
    Norm sum_norm;
    [[nodiscard]] bool norms_output() const { return spec.output_norm != ops::NormKind::none; }
    [[nodiscard]] bool norms_sum() const { return spec.sum_norm != ops::NormKind::none; }
    /// True if the sublayer's output enters the stream by itself, with nothing but dropout between.
    [[nodiscard]] bool is_plain() const {
      return !norms_output() && !norms_sum() && !spec.with_next;
    }
  };
  [[nodiscard]] bool drops() const { return config_.dropout > 0 || drop_path_ > 0; }
  void drop(Context& ctx, const BatchInfo& batch, std::size_t branch, CView x, View y) const;
  [[nodiscard]] CView masked(Context& ctx, const BatchInfo& batch, std::size_t branch,
                             const Scratch& scratch, CView d) const;
  [[nodiscard]] bool is_held(std::size_t branch) const {
    return branch > 0 && branches_[branch - 1].spec.with_next;
  }
  [[nodiscard]] bool ends_early(Context& ctx, std::size_t branch, const ForwardPass& pass,
                                const Slot& slot) const;
  [[nodiscard]] bool forward_token(Context& ctx, ResidualStream in, const ForwardPass& pass,
                                   Slot& slot) const;
  void run_branch(Context& ctx, std::size_t branch, const ForwardPass& pass, Slot& slot,
                  View y) const;
  [[nodiscard]] StreamBiases stream_biases(const BackwardPass& pass, std::size_t second) const;
  void backward_branch(Context& ctx, const BackwardPass& pass, std::size_t branch, const Slot& slot,
                       View d) const;
  BlockConfig config_;
  int layer_ = 0;
  float drop_path_ = 0;
  std::vector<Branch> branches_;
};

}  // namespace hyperslab::nn
