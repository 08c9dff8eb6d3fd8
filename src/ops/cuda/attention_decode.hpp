// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// True if attention_decode takes these: one token a sample, heads 64, 128, 256 or 512 bytes wide,
/// the turned half of them a multiple of 16 bytes, a causal mask, views aligned to 16 bytes, and a
/// GPU of compute capability 9.0 or newer.
[[nodiscard]] bool suits_attention_decode(const HeadLayout& layout, const AttentionScores& scores,
                                          const RotaryTables& tables, CView qkv,
                                          const KeyValueCache& cache);
/// rope_attention_cached_forward in one kernel.
void attention_decode(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                      const RotaryTables& tables, CView qkv, const KeyValueCache& cache, View out);

}  // namespace hyperslab::ops::cuda
