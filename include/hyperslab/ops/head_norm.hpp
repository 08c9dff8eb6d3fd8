// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

/// Factors of the features of a head, (Dh), one set for queries and one for keys.
struct HeadNormWeights {
  CView query;
  CView key;
  float eps = 0;
};
/// Values that forward keeps for backward: query and key heads as they were, (B, T, (H + H_kv) Dh),
/// and their 1 / root of the mean square, (B, T, H + H_kv) in f32 (f64 for f64).
struct HeadNormSaved {
  View heads;
  View rstd;
};
/// RMSNorm of each query head and each key head of qkv by itself, in place, before rope (Henry et
/// al. 2020 normalize so by length; this form is Qwen3's). qkv: (B, T, packed), values stay.
/// `saved` may be absent.
void head_norm_forward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                       View qkv, const HeadNormSaved& saved);

/// (Dh), deterministic; both absent if they are frozen.
struct HeadNormGradients {
  View query{};
  View key{};
  Accumulate accumulate = Accumulate::no;
};
/// dqkv: (B, T, packed), gradients of the normalized heads become gradients of the heads before.
void head_norm_backward(Context& ctx, const HeadLayout& layout, const HeadNormWeights& weights,
                        const HeadNormSaved& saved, View dqkv, const HeadNormGradients& gradients);

}  // namespace hyperslab::ops
