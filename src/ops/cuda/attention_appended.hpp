// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// True if attention_appended takes these: a causal mask, bf16 or f16, heads of a multiple of 8
/// elements up to 256, views that begin at multiples of 16 bytes, and enough new tokens of a sample
/// to fill tiles. Fewer leave most of the GPU idle, where kernels that cut keys among blocks do
/// not.
[[nodiscard]] bool suits_attention_appended(const HeadLayout& layout, const AttentionScores& scores,
                                            CView qkv, const KeyValueCache& cache, CView out);

/// Attention of many new tokens of each sample on tensor cores, whose keys and values, and all
/// earlier tokens', are in the cache; `cache.past` may differ from sample to sample and is read
/// on the GPU. Of qkv: (B, T_new, packed) it reads the queries, rotated already. out:
/// (B, T_new, H * Dh). It needs no workspace.
void attention_appended(Context& ctx, const char* op, const HeadLayout& layout,
                        const AttentionScores& scores, CView qkv, const KeyValueCache& cache,
                        View out);

/// attention_appended() by warpgroups, for heads that suits_warpgroups().
void warpgroup_attention_appended(Context& ctx, const char* op, const HeadLayout& layout,
                                  const AttentionScores& scores, CView qkv,
                                  const KeyValueCache& cache, View out);

}  // namespace hyperslab::ops::cuda
