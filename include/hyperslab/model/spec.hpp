// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/core/view.hpp"
#include "hyperslab/ops/activation.hpp"
#include "hyperslab/ops/norm.hpp"

namespace hyperslab::model {

enum class Position : std::uint8_t { learned, sinusoidal, rope, none };
enum class NormPlace : std::uint8_t { pre, post };
/// `cudnn` is what a deck may ask for; the deck reader refuses it off the GPU and hands on `fused`.
enum class AttentionPath : std::uint8_t { automatic, fused, reference, cudnn };

/// Deck section `model`: one transformer with orthogonal choices; a family only sets defaults.
struct ModelSpec {
  std::string family = "gpt2";  ///< gpt2 | llama
  Dim layers = 0;
  Dim width = 0;
  Dim heads = 0;
  Dim kv_heads = 0;   ///< 0 in the deck: as many as heads
  Dim ffn_width = 0;  ///< 0 in the deck: 4 width; gated: 8/3 width rounded up to a multiple of 64
  Dim vocabulary = 0;
  Dim context = 0;
  Position position = Position::learned;
  double rope_theta = 10000;
  ops::NormKind norm = ops::NormKind::layernorm;
  NormPlace norm_place = NormPlace::pre;
  double norm_eps = 1e-5;
  ops::Activation activation = ops::Activation::gelu_tanh;
  bool bias = true;
  bool tie_embeddings = true;
  double dropout = 0;
  AttentionPath attention = AttentionPath::automatic;
  double init_std = 0.02;
  bool scale_residual_init = true;  ///< residual projections start with init_std / sqrt(2 layers)

  [[nodiscard]] Dim head_width() const { return width / heads; }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// The defaults of a family: gpt2 (Radford et al. 2019) or llama (Touvron et al. 2023).
[[nodiscard]] ModelSpec preset(const std::string& family);

/// Every choice that decides what the model computes, "key=value key=value ...": two models are the
/// same where this is. Dropout, initial values and the attention path are not part of it.
[[nodiscard]] std::string identity(const ModelSpec& spec);

/// Number of parameters, tied tables counted once.
[[nodiscard]] std::int64_t parameter_count(const ModelSpec& spec);
/// Parameters in matrix products: without an untied input table and positions, a tied table once.
[[nodiscard]] std::int64_t matmul_parameter_count(const ModelSpec& spec);
/// Multiplications per token of the embedding (none), every block and the head, for cutting a model
/// into stages of equal cost; attention at the full context, causal.
[[nodiscard]] std::vector<double> unit_costs(const ModelSpec& spec);
/// Model FLOPs of forward and backward per token at sequence length T: 6 N + 6 L C T counting the
/// causal half of attention, 6 N + 12 L C T counting all of it.
[[nodiscard]] double flops_per_token(const ModelSpec& spec, Dim T, bool causal);

}  // namespace hyperslab::model
