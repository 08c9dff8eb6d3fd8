// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/context_group.hpp"
#include "hyperslab/nn/drop_path_rule.hpp"
#include "hyperslab/nn/expert_group.hpp"
#include "hyperslab/nn/experts_config.hpp"
#include "hyperslab/nn/linear.hpp"
#include "hyperslab/nn/qk_norm.hpp"
#include "hyperslab/nn/recompute.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::nn {

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
  ContextGroup context_group;
  ExpertGroup expert_group;
  Recompute recompute = Recompute::none;
  /// The most rows, of all ranks of the group, that pass through the feed-forward network at once;
  /// backward then computes all but its input again. 0: all rows pass at once, and all is kept.
  Dim mlp_rows = 0;
  bool split_backward = false;  ///< slots keep operands of backward's weight half
  ExpertsConfig experts;        ///< sizes of mixtures of experts
  AdapterConfig adapter;
  Fp8Config fp8;
};

}  // namespace hyperslab::nn
