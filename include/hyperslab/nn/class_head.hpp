// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/block.hpp"
#include "hyperslab/nn/head.hpp"
#include "hyperslab/ops/classes.hpp"

namespace hyperslab::nn {

struct ClassHeadConfig {
  Dim width = 0;
  Dim classes = 0;
  Dim columns = 0;          ///< columns of the logits, with padding
  Dim tokens = 0;           ///< tokens of a sample
  bool class_token = true;  ///< is pooled; else the mean of all tokens
  double label_smoothing = 0;
  float logit_scale = 1;  ///< factor of the products, before the bias
  MatrixInit init;
  ops::NormKind norm = ops::NormKind::layernorm;  ///< after pooling
  float norm_eps = 1e-6F;
  bool bias = true;  ///< true if the norm has a bias
  TensorGroup group;
};

/// Pooling, norm, projection to classes and loss. It is small: every rank of the tensor group holds
/// and computes all of it.
class ClassHead {
 public:
  ClassHead(param::ParamStore& params, const ClassHeadConfig& config);

  /// Memory that all slots use in turn.
  struct Memory {
    View pooled;     ///< (B, C) of the statistics' type
    View d_pooled;   ///< (B, 1, C); with gradients only
    View scaled;     ///< (B, C): rows times the logit scale; absent if that is 1
    View logits;     ///< (B, columns)
    View discarded;  ///< (ops::kSumCount): sums that another rank counts; with several ranks only
  };
  [[nodiscard]] Memory plan(Arena& scratch, const ActivationSpec& spec, bool training) const;
  struct Slot {
    View pooled;  ///< (B, 1, C)
    Norm::Slot norm;
  };
  [[nodiscard]] Slot plan_slot(Arena& activations, const ActivationSpec& spec) const;

  struct Labels {
    CView labels;   ///< (B, 2) i32
    CView weights;  ///< (B) f32
  };
  /// Adds the loss of a stream to the sums (on one rank of the group), without smoothing.
  void loss(Context& ctx, ResidualStream in, const Labels& labels, const Head::Step& step,
            const Memory& memory, Slot& slot) const;
  /// loss with smoothing, and its gradients: dx, the stream's, is overwritten; the parameters'
  /// follow `accumulate`.
  void loss_and_gradient(Context& ctx, ResidualStream in, const Labels& labels,
                         const Head::Step& step, const Memory& memory, Slot& slot, View dx,
                         Accumulate accumulate) const;

 private:
  [[nodiscard]] ops::PooledRows rows_of(CView stream, Dim B) const;
  /// (B, C) after the norm, times the logit scale; the logits lie in memory.
  CView logits(Context& ctx, ResidualStream in, const Memory& memory, Slot& slot) const;
  [[nodiscard]] View sums(const Head::Step& step, const Memory& memory) const {
    return config_.group.is_first() ? step.sums : memory.discarded;
  }
  ClassHeadConfig config_;
  Norm norm_;
  param::FusedParam weight_;
  param::FusedParam bias_;
};

}  // namespace hyperslab::nn
