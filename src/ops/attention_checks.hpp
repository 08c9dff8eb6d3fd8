// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops {

/// (B, T) of qkv after checking the operands of attention on a cache, but its output.
std::array<Dim, 2> require_cached(Context& ctx, const HeadLayout& layout,
                                  const AttentionScores& scores, const RotaryTables& tables,
                                  CView qkv, const KeyValueCache& cache);

}  // namespace hyperslab::ops
