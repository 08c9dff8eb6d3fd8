// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// ops::attention_forward and attention_backward by cuDNN, without caps, documents and sinks. The
/// views begin at multiples of 16 bytes.
void cudnn_attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView qkv, View out, View log_sum_exp);
void cudnn_attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView dout, const AttentionSaved& saved, View dqkv);

}  // namespace hyperslab::ops::cuda
