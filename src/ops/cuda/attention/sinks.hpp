// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/attention.hpp"

namespace hyperslab::ops::cuda {

/// After a fused forward pass without sinks: out and log_sum_exp become those with them, and
/// sinks.weights is written unless it is absent.
void add_sinks(Context& ctx, const HeadLayout& layout, const AttentionSinks& sinks, View out,
               View log_sum_exp);

}  // namespace hyperslab::ops::cuda
