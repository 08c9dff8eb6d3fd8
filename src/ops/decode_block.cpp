// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/decode_block.hpp"

#include "attention_checks.hpp"
#include "backend.hpp"
#include "checks.hpp"
#include "cuda/products/decode_block.hpp"
#include "kernel_choice.hpp"
#include "quantized_checks.hpp"

namespace hyperslab::ops {
namespace {

void require_weights(Context& ctx, const BlockWeights& weights, Dim M, Dim K, DType dtype,
                     const std::string& what) {
  if (weights.codes) {
    require_quantized(ctx, *weights.codes, what);
    require(weights.codes->shape == Shape({M, K}), "decode_block_forward: codes of another shape");
  } else {
    require_operand(ctx, weights.weight, {M, K}, dtype, what);
  }
  if (weights.bias) require_operand(ctx, weights.bias, {M}, dtype, what + " bias");
}

void require_norm(Context& ctx, const BlockNorm& norm, Dim C, DType dtype, const char* what) {
  require_operand(ctx, norm.weight, {C}, dtype, what);
  if (norm.bias) require_operand(ctx, norm.bias, {C}, dtype, what);
}

void require_block(Context& ctx, const DecodeBlock& block, const DecodeStream& stream) {
  require_here(ctx, stream.residual, "decode_block_forward residual");
  const DType dtype = stream.residual.dtype();
  const Dim C = last(stream.residual, "decode_block_forward residual");
  const Dim packed = block.heads.packed_width();
  const Dim attended = block.heads.heads * block.heads.head_width;
  const Dim pre = block.up.shape()[0];
  const Dim F = is_gated(block.activation) ? pre / 2 : pre;
  require_rows(ctx, stream.residual, 1, C, dtype, "decode_block_forward residual");
  require(stream.delta || !stream.attention_sum, "decode_block_forward: a sum without a delta");
  if (stream.delta) {
    require_rows(ctx, stream.delta, 1, C, dtype, "decode_block_forward delta");
    require_rows(ctx, stream.attention_sum, 1, C, dtype, "decode_block_forward attention_sum");
  }
  require_rows(ctx, stream.mlp_sum, 1, C, dtype, "decode_block_forward mlp_sum");
  require_operand(ctx, stream.qkv, {1, 1, packed}, dtype, "decode_block_forward qkv");
  require_rows(ctx, stream.activated, 1, F, dtype, "decode_block_forward activated");
  require_rows(ctx, stream.out, 1, C, dtype, "decode_block_forward out");
  require_norm(ctx, block.attention_norm, C, dtype, "decode_block_forward attention_norm");
  require_norm(ctx, block.mlp_norm, C, dtype, "decode_block_forward mlp_norm");
  require_weights(ctx, block.qkv, packed, C, dtype, "decode_block_forward qkv weight");
  require_weights(ctx, block.output, C, attended, dtype, "decode_block_forward output weight");
  require_weights(ctx, block.up, pre, C, dtype, "decode_block_forward up weight");
  require_weights(ctx, block.down, C, F, dtype, "decode_block_forward down weight");
}

}  // namespace

bool decode_block_forward(Context& ctx, const DecodeBlock& block, const DecodeStream& stream) {
  note_kernel(
      ctx, "decode_block_forward", cuda::kDecodeBlock, cuda::DecodeBlockProblem{block, stream},
      [&] { return "a token through a block " + std::to_string(block.qkv.shape()[1]) + " wide"; });
  if (ctx.device() != Device::cuda || ctx.product_observer() != nullptr) return false;
  if constexpr (kHasCuda) {
    if (!cuda::suits_decode_block(block, stream)) return false;
  }
  require_block(ctx, block, stream);
  require_cached(ctx, block.heads, block.scores, block.tables, stream.qkv, block.cache);
  const OpScope scope(ctx, "decode_block_forward");
  if constexpr (kHasCuda) cuda::decode_block(ctx, block, stream);
  return true;
}

}  // namespace hyperslab::ops
