// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "attention_checks.hpp"
#include "backend.hpp"
#include "checks.hpp"
#include "cuda/attention/cached_table.hpp"
#include "hyperslab/core/error.hpp"
#include "kernel_choice.hpp"

namespace hyperslab::ops {
namespace {

constexpr const char* kName = "attention_cached_forward";

/// Pairs of a new token and a key that it sees, of one sample and head.
double seen_pairs(const AttentionMask& mask, Dim T, Dim past) {
  const double seen = static_cast<double>(past) + 0.5 * static_cast<double>(T + 1);
  return static_cast<double>(T) *
         (mask.window > 0 ? std::min(seen, static_cast<double>(mask.window)) : seen);
}

/// "2 samples of 5 tokens after 40, 6 heads of 64"
std::string text_of(const cuda::CacheProblem& problem) {
  const auto [B, T, packed] = problem.qkv.dims<3>(kName);
  return std::to_string(B) + " samples of " + std::to_string(T) + " tokens after " +
         std::to_string(problem.cache.past.value) + ", " + std::to_string(problem.layout.heads) +
         " heads of " + std::to_string(problem.layout.head_width) + ", " +
         std::string(name_of(problem.qkv.dtype())) +
         (problem.cache.pages ? ", pages of " + std::to_string(problem.cache.page_tokens()) : "");
}

}  // namespace

std::array<Dim, 2> require_cached(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  CView qkv, const KeyValueCache& cache) {
  const auto [B, T] = require_packed(ctx, layout, qkv, "attention_cached_forward qkv");
  require_mask(scores, kName);
  require(scores.mask.kind == AttentionMask::Kind::causal && !scores.first_keys,
          "attention_cached_forward mask: expected a causal one without first_keys");
  require_sinks(ctx, scores.sinks, {B, layout.heads, T}, qkv.dtype(),
                "attention_cached_forward sinks");
  require_here(ctx, cache.keys, "attention_cached_forward keys");
  const auto [pages, tokens, width] = cache.keys.dims<3>("attention_cached_forward keys");
  const Shape shape = {cache.pages ? pages : B, tokens, layout.kv_heads * layout.head_width};
  require_operand(ctx, cache.keys, shape, qkv.dtype(), "attention_cached_forward keys");
  require_operand(ctx, cache.values, shape, qkv.dtype(), "attention_cached_forward values");
  if (cache.pages) {
    require(std::has_single_bit(static_cast<std::uint64_t>(tokens)),
            "attention_cached_forward keys: expected pages of a power of two of tokens");
    const Dim most = cache.pages.dims<2>("attention_cached_forward pages")[1];
    require_operand(ctx, cache.pages, {B, most}, DType::i32, "attention_cached_forward pages");
  }
  require_position(ctx, cache.past, B, "attention_cached_forward past");
  require(cache.past.value + T <= cache.room(),
          "attention_cached_forward past: the cache ends before the new tokens");
  if (tables.cosines) require_rotation(ctx, layout, tables, cache.past, T, qkv);
  return {B, T};
}

void attention_cached_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              const RotaryTables& tables, View qkv, const KeyValueCache& cache,
                              View out) {
  const auto [B, T] = require_cached(ctx, layout, scores, tables, qkv, cache);
  require_operand(ctx, out, {B, T, layout.heads * layout.head_width}, qkv.dtype(),
                  "attention_cached_forward out");
  const cuda::CacheProblem problem = {layout, scores, tables, qkv, cache, out};
  note_kernel(ctx, kName, cuda::kAttentionCached, problem, [&] { return text_of(problem); });
  const double flops = 4.0 * static_cast<double>(B * layout.heads * layout.head_width) *
                       seen_pairs(scores.mask, T, cache.past.value);
  const Dim width = cache.keys.shape()[2];
  const Dim rows = std::min(cache.keys.numel() / width, B * (cache.past.value + T));
  const CView seen = cache.keys.reshaped({cache.keys.numel() / width, width}).slice(0, rows);
  if (on_meta(ctx, kName, flops, {qkv, seen, seen, out},
              workspace_for(ctx,
                            cpu::attention_forward_workspace(ctx.threads(), layout, cache.room(),
                                                             qkv.dtype()),
                            cuda::attention_cached_workspace(layout)))) {
    return;
  }
  if (tables.cosines && ctx.device() == Device::cpu) {
    // By itself, so that keys are rounded to their dtype before scores are made of them, as they
    // are in a forward pass.
    dispatch<cuda::rope, cpu::rope>(ctx, layout, tables.cosines, tables.sines, cache.past,
                                    Rotation::forward, qkv);
  }
  dispatch<cuda::attention_cached_forward, cpu::attention_cached_forward>(ctx, layout, scores,
                                                                          tables, qkv, cache, out);
}

}  // namespace hyperslab::ops
