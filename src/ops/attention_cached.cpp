// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "attention_checks.hpp"
#include "backend.hpp"
#include "checks.hpp"
#include "cuda/attention_decode.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

/// Scores of T new tokens against `past` earlier ones and each other.
double cached_scores(const AttentionMask& mask, Dim T, Dim past) {
  const auto tokens = static_cast<double>(T);
  const double among = mask.kind == AttentionMask::Kind::causal ? 0.5 * (tokens + 1) : tokens;
  const double seen = static_cast<double>(past) + among;
  return tokens * (mask.window > 0 ? std::min(seen, static_cast<double>(mask.window)) : seen);
}

void require_attended(Context& ctx, const HeadLayout& layout, std::array<Dim, 2> tokens, CView qkv,
                      View out) {
  const auto [B, T] = tokens;
  require_operand(ctx, out, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "attention_cached_forward out");
}

}  // namespace

std::array<Dim, 2> require_cached(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  CView qkv, const KeyValueCache& cache) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_cached_forward qkv");
  require_mask(scores, "attention_cached_forward");
  require(!scores.first_keys, "attention_cached_forward first_keys: a cache holds one document");
  require_sinks(ctx, scores.sinks, {B, layout.heads, T}, qkv.dtype(),
                "attention_cached_forward sinks");
  require(!cache.pages, "attention_cached_forward pages: a cache in pages has an op of its own");
  require_here(ctx, cache.keys, "attention_cached_forward keys");
  const Dim T_max = cache.keys.dims<3>("attention_cached_forward keys")[1];
  const Shape shape = {B, T_max, layout.kv_heads * layout.head_width};
  require_operand(ctx, cache.keys, shape, qkv.dtype(), "attention_cached_forward keys");
  require_operand(ctx, cache.values, shape, qkv.dtype(), "attention_cached_forward values");
  require_position(ctx, cache.past, 1, "attention_cached_forward past");
  require(cache.past.value + T <= T_max,
          "attention_cached_forward past: the cache ends before the new tokens");
  if (tables.cosines) require_rotation(ctx, layout, tables, cache.past, T, qkv);
  return {B, T};
}

void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView qkv, const KeyValueCache& cache, View out) {
  const auto [B, T] = require_cached(ctx, layout, scores, {}, qkv, cache);
  require_attended(ctx, layout, {B, T}, qkv, out);
  const Dim T_max = cache.keys.shape()[1];
  const double flops = 4.0 * static_cast<double>(B * layout.heads * layout.head_width) *
                       cached_scores(scores.mask, T, cache.past.value);
  if (on_meta(ctx, "attention_cached_forward", flops, {qkv, cache.keys, cache.values, out},
              workspace_for(
                  ctx, cpu::attention_forward_workspace(ctx.threads(), layout, T_max, qkv.dtype()),
                  cuda::attention_cached_workspace(layout)))) {
    return;
  }
  dispatch<cuda::attention_cached_forward, cpu::attention_cached_forward>(ctx, layout, scores, qkv,
                                                                          cache, out);
}

void rope_attention_cached_forward(Context& ctx, const HeadLayout& layout,
                                   const AttentionScores& scores, const RotaryTables& tables,
                                   View qkv, const KeyValueCache& cache, View out) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda &&
        cuda::suits_attention_decode(layout, scores, tables, qkv, cache)) {
      require_attended(ctx, layout, require_cached(ctx, layout, scores, tables, qkv, cache), qkv,
                       out);
      const OpScope scope(ctx, "attention_cached_forward");
      return cuda::attention_decode(ctx, layout, scores, tables, qkv, cache, out);
    }
  }
  if (tables.cosines) {
    rope(ctx, layout, tables.cosines, tables.sines, cache.past, Rotation::forward, qkv);
  }
  attention_cached_forward(ctx, layout, scores, qkv, cache, out);
}

namespace {

constexpr const char* kPaged = "rope_attention_paged_forward";

/// (B, T) after checking the operands of attention on a cache in pages.
std::array<Dim, 2> require_paged(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, const RotaryTables& tables,
                                 CView qkv, const KeyValueCache& cache, CView out) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "rope_attention_paged_forward qkv");
  require_mask(scores, kPaged);
  require(scores.mask.kind == AttentionMask::Kind::causal && !scores.first_keys,
          "rope_attention_paged_forward mask: expected a causal one without first_keys");
  require_sinks(ctx, scores.sinks, {B, layout.heads, T}, qkv.dtype(),
                "rope_attention_paged_forward sinks");
  require_here(ctx, cache.keys, "rope_attention_paged_forward keys");
  const auto [pages, tokens, width] = cache.keys.dims<3>("rope_attention_paged_forward keys");
  require(std::has_single_bit(static_cast<std::uint64_t>(tokens)),
          "rope_attention_paged_forward keys: expected pages of a power of two of tokens");
  const Shape shape = {pages, tokens, layout.kv_heads * layout.head_width};
  require_operand(ctx, cache.keys, shape, qkv.dtype(), "rope_attention_paged_forward keys");
  require_operand(ctx, cache.values, shape, qkv.dtype(), "rope_attention_paged_forward values");
  const Dim most = cache.pages.dims<2>("rope_attention_paged_forward pages")[1];
  require_operand(ctx, cache.pages, {B, most}, DType::i32, "rope_attention_paged_forward pages");
  require_position(ctx, cache.past, B, "rope_attention_paged_forward past");
  require(cache.past.value + T <= most * tokens,
          "rope_attention_paged_forward past: the pages end before the new tokens");
  require_operand(ctx, out, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "rope_attention_paged_forward out");
  if (tables.cosines) require_rotation(ctx, layout, tables, cache.past, T, qkv);
  return {B, T};
}

}  // namespace

void rope_attention_paged_forward(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  View qkv, const KeyValueCache& cache, View out) {
  const auto [B, T] = require_paged(ctx, layout, scores, tables, qkv, cache, out);
  const Dim most = cache.pages.shape()[1] * cache.keys.shape()[1];
  const double flops = 4.0 * static_cast<double>(B * layout.heads * layout.head_width) *
                       cached_scores(scores.mask, T, cache.past.value);
  if (on_meta(ctx, kPaged, flops, {qkv, out},
              workspace_for(
                  ctx, cpu::attention_forward_workspace(ctx.threads(), layout, most, qkv.dtype()),
                  cuda::attention_paged_workspace(layout)))) {
    return;
  }
  if (tables.cosines && ctx.device() == Device::cpu) {
    // By itself, so that keys are rounded to their dtype before scores are made of them, as they
    // are in a forward pass.
    dispatch<cuda::rope, cpu::rope>(ctx, layout, tables.cosines, tables.sines, cache.past,
                                    Rotation::forward, qkv);
  }
  dispatch<cuda::rope_attention_paged_forward, cpu::rope_attention_paged_forward>(
      ctx, layout, scores, tables, qkv, cache, out);
}

}  // namespace hyperslab::ops
