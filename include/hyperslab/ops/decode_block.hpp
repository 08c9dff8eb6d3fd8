// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/norm.hpp"
#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops {

/// The matrix of a linear layer, of elements or of codes, and its bias or none.
struct BlockWeights {
  CView weight{};                         ///< (M, K); absent with codes
  std::optional<CQuantizedMatrix> codes;  ///< codes (M, K), multiplied without int8 activations
  CView bias{};                           ///< (M)
  [[nodiscard]] Shape shape() const { return codes ? codes->shape : weight.shape(); }
};

/// As NormOperands have them.
struct BlockNorm {
  NormKind kind = NormKind::rmsnorm;
  CView weight{};
  CView bias{};
  float eps = 0;
};

/// A transformer block with norms before its sublayers.
struct DecodeBlock {
  BlockNorm attention_norm;
  BlockWeights qkv;
  HeadLayout heads;
  AttentionScores scores;
  RotaryTables tables;
  KeyValueCache cache;
  BlockWeights output;
  BlockNorm mlp_norm;
  BlockWeights up;  ///< gate and up of a gated activation, one after the other
  Activation activation = Activation::swiglu;
  BlockWeights down;
};

/// The residual stream of one token, C wide, through a block, and memory for the values in between.
struct DecodeStream {
  CView residual;
  CView delta;  ///< is added to residual; absent: nothing is, and out must not alias residual
  View attention_sum;  ///< residual + delta; absent without delta
  View mlp_sum;        ///< attention_sum + the output of attention
  View qkv;            ///< (1, 1, packed)
  View activated;      ///< (1, 1, F)
  View out;            ///< output of the feed-forward network; may alias delta
};

/// One token through a whole block in one kernel, which reads every weight once and leaves the
/// memory idle only at its ends: between the products all blocks wait for each other, and the next
/// product's weights come meanwhile.
///   attention_sum = residual + delta
///   a = output(attention(rope(qkv(norm(attention_sum))), cache))
///   mlp_sum = attention_sum + a
///   out = down(activation(up(norm(mlp_sum))))
/// each rounded as by add_norm_forward, linear_forward (with codes quantized_linear_forward, whose
/// x is rounded to 16 bits of the largest among its neighbors), attention_cached_forward and
/// the ops of activations; qkv is not rotated. Returns false, and enqueues nothing, if a GPU or the
/// operands do not suit: bf16 or f16 on a GPU of compute capability 9.0, heads 64 or 128 wide, a
/// cache without pages, the four matrices in the same format (of elements, int8 or int4), and
/// neither sum in the place of the other, of out or of attention_sum's operands. The kernel needs
/// every multiprocessor at once: one at a time may run on a GPU, and no other program beside it
/// that keeps multiprocessors for itself.
[[nodiscard]] bool decode_block_forward(Context& ctx, const DecodeBlock& block,
                                        const DecodeStream& stream);

}  // namespace hyperslab::ops
