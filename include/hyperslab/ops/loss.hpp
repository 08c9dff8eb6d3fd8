// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

inline constexpr std::int32_t kIgnoredTarget = -1;  ///< a place that does not count

/// Cross-entropy of softmax(logits) and, where `gradient`, dlogits in place.
/// logits: (N, V), replaced by (softmax - onehot) * state.gradient_scale, zero in ignored rows;
/// targets: (N) i32 in [0, V) or kIgnoredTarget; sums: (kSumCount), whose loss (nats), tokens and
/// correct are increased. Loss and statistics are f32 or better; sums over rows are deterministic.
enum class WithGradient : std::uint8_t { no, yes };
void softmax_cross_entropy(Context& ctx, View logits, CView targets, const StepState* state,
                           WithGradient gradient, View sums);

}  // namespace hyperslab::ops
