// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "cuda/tools/kernel_table.hpp"
#include "warpgroup.hpp"

// The kernels of attention on a cache, in generation. All but decode are launched after
// place_new_tokens(), which turns the new queries and keys and writes keys and values to the cache.

namespace hyperslab::ops::cuda {

/// The operands of attention_cached_forward, which has checked them.
struct CacheProblem {
  HeadLayout layout;
  AttentionScores scores;
  RotaryTables tables;
  CView qkv;
  KeyValueCache cache;
  CView out;
  [[nodiscard]] Dim new_tokens() const { return qkv.shape()[1]; }
  /// Elements of 16 bytes.
  [[nodiscard]] Dim vector() const { return static_cast<Dim>(16 / size_of(qkv.dtype())); }
};

/// Heads of 64, 128, 256 or 512 bytes, whose elements begin at multiples of 16 bytes: a team of 4
/// to 32 lanes reads a row, 16 bytes a lane.
[[nodiscard]] inline Reason has_team_width(const CacheProblem& problem) {
  const Dim width = problem.layout.head_width;
  const Dim lanes = width % problem.vector() == 0 ? width / problem.vector() : 0;
  if (lanes != 4 && lanes != 8 && lanes != 16 && lanes != 32) {
    return "heads are not 64, 128, 256 or 512 bytes wide";
  }
  if (!begin_at_16_bytes(problem.qkv, problem.cache.keys, problem.cache.values)) {
    return "operands do not begin at multiples of 16 bytes";
  }
  return {};
}

/// One kernel, whose blocks share the keys of a head.
[[nodiscard]] inline Reason suits_attention_decode(const CacheProblem& problem) {
  const auto& [layout, scores, tables, qkv, cache, out] = problem;
  if (cache.pages) return "cache is in pages";
  if (problem.new_tokens() != 1) return "samples have more than one new token";
  if (cache.past.live && cache.past.live.numel() > 1) return "lengths are given sample by sample";
  if (tables.cosines && tables.cosines.shape()[1] % problem.vector() != 0) {
    return "turned columns are no multiple of 16 bytes";
  }
  if (!begin_at_16_bytes(tables.cosines, tables.sines)) {
    return "tables do not begin at multiples of 16 bytes";
  }
  return has_team_width(problem);
}

/// Tensor cores, for enough new tokens of a sample to fill tiles. Fewer leave most of the GPU idle,
/// where kernels that cut keys among blocks do not.
[[nodiscard]] inline Reason suits_cached_tiles(const CacheProblem& problem) {
  constexpr Dim kFewestTokens = 32;
  const auto& [layout, scores, tables, qkv, cache, out] = problem;
  if (problem.new_tokens() < kFewestTokens) return "samples have fewer than 32 new tokens";
  if (!has_fused_attention_on_gpu(qkv.dtype(), layout.head_width)) {
    return "not 16-bit elements in heads of a multiple of 8 up to 256";
  }
  if (!begin_at_16_bytes(qkv, cache.keys, cache.values, out)) {
    return "operands do not begin at multiples of 16 bytes";
  }
  return {};
}

[[nodiscard]] inline Reason suits_cached_warpgroups(const CacheProblem& problem) {
  // With smaller pages a tile would take too many copies; a box begins at a multiple of 8 rows.
  constexpr Dim kFewestPageTokens = 16;
  if (problem.cache.pages && problem.cache.page_tokens() < kFewestPageTokens) {
    return "pages have fewer than 16 tokens";
  }
  if (!has_warpgroup_width(problem.layout)) return "head width is not 64 or 128";
  return suits_cached_tiles(problem);
}

[[nodiscard]] inline Reason suits_every_cache(const CacheProblem& /*problem*/) { return {}; }

using CachedKernel = Kernel<CacheProblem, decltype(ops::attention_cached_forward)>;
decltype(ops::attention_cached_forward) attention_decode;
decltype(ops::attention_cached_forward) attention_cached_by_warpgroups;
decltype(ops::attention_cached_forward) attention_cached_by_tiles;
decltype(ops::attention_cached_forward) attention_cached_by_teams;
decltype(ops::attention_cached_forward) attention_cached_of_any_width;
inline constexpr std::array kAttentionCached = {
    CachedKernel{"decode", Needs::overlap, suits_attention_decode, launch_of<attention_decode>(),
                 "attention/decode.cu", "attend_decode_kernel"},
    CachedKernel{"warpgroups", Needs::warpgroups, suits_cached_warpgroups,
                 launch_of<attention_cached_by_warpgroups>(), "attention/cached_warpgroup.cu",
                 "attend_warpgroup_cached_kernel"},
    CachedKernel{"tiles", Needs::any_gpu, suits_cached_tiles,
                 launch_of<attention_cached_by_tiles>(), "attention/cached_tiles.cu",
                 "attend_tiles_cached_kernel"},
    CachedKernel{"teams", Needs::any_gpu, has_team_width, launch_of<attention_cached_by_teams>(),
                 "attention/cached_teams.cu", "attend_teams_kernel merge_teams_kernel"},
    CachedKernel{"any width", Needs::any_gpu, suits_every_cache,
                 launch_of<attention_cached_of_any_width>(), "attention/cached.cu",
                 "attend_any_width_kernel"}};

}  // namespace hyperslab::ops::cuda
