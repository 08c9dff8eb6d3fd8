// SPDX-License-Identifier: Apache-2.0
// Checks that ops of attention share.
#pragma once

#include <array>
#include <string_view>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops {

/// (B, T) of a packed qkv after checking it against the layout.
[[nodiscard]] std::array<Dim, 2> require_packed(const Context& ctx, const HeadLayout& layout,
                                                CView qkv, std::string_view what);
/// Throws for a kind that no backend knows, and for a causal mask's settings without that mask.
void require_mask(const AttentionScores& scores, std::string_view op);
/// Logits and weights of sinks, if there are any.
void require_sinks(const Context& ctx, const AttentionSinks& sinks, const Shape& weights,
                   DType dtype, std::string_view what);
/// Operands of rope(): tables that have an angle for every position.
void require_rotation(const Context& ctx, const HeadLayout& layout, const RotaryTables& tables,
                      const TokenPosition& first_position, Dim T, CView qkv);
/// (B, T) of qkv after checking the operands of attention on a cache, but its output.
std::array<Dim, 2> require_cached(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  CView qkv, const KeyValueCache& cache);

}  // namespace hyperslab::ops
