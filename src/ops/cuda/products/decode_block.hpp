// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "cuda/attention/cached_table.hpp"
#include "hyperslab/ops/decode_block.hpp"

// The ways of one token through a block: one kernel, or the block's operations one by one.

namespace hyperslab::ops::cuda {

struct DecodeBlockProblem {
  const DecodeBlock& block;
  const DecodeStream& stream;
};

/// The reasons that need no GPU. The kernel also refuses weights that its rings have no room for,
/// and operands that overlap.
[[nodiscard]] inline Reason suits_whole_block(const DecodeBlockProblem& problem) {
  const auto& [block, stream] = problem;
  if (size_of(stream.residual.dtype()) != 2) return "elements are not 16 bits wide";
  if (!has_warpgroup_width(block.heads)) return "head width is not 64 or 128";
  if (block.attention_norm.kind == NormKind::none || block.mlp_norm.kind == NormKind::none) {
    return "a sublayer has no norm before it";
  }
  if (block.scores.mask.kind != AttentionMask::Kind::causal) return "mask is not causal";
  return suits_attention_decode(
      {block.heads, block.scores, block.tables, stream.qkv, block.cache, {}});
}
[[nodiscard]] inline Reason suits_operations(const DecodeBlockProblem& /*problem*/) { return {}; }

/// True if decode_block takes these operands of decode_block_forward.
[[nodiscard]] bool suits_decode_block(const DecodeBlock& block, const DecodeStream& stream);
void decode_block(Context& ctx, const DecodeBlock& block, const DecodeStream& stream);

using DecodeBlockKernel = Kernel<DecodeBlockProblem, decltype(decode_block)>;
inline constexpr std::array kDecodeBlock = {
    DecodeBlockKernel{"one kernel", Needs::overlap, suits_whole_block, launch_of<decode_block>(),
                      "products/decode_block.cu", "decode_block_kernel"},
    DecodeBlockKernel{"its operations", Needs::any_gpu, suits_operations, nullptr}};

}  // namespace hyperslab::ops::cuda
