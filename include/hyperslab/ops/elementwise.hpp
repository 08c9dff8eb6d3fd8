// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// y = a + b, equal shapes; y may alias a or b.
void add(Context& ctx, CView a, CView b, View y);
/// y = value everywhere; f32 or f64 (zero in any dtype).
void fill(Context& ctx, float value, View y);
/// y = x, converting between f64, f32, bf16 and f16 with rounding to nearest even.
void cast(Context& ctx, CView x, View y);
/// Root mean square of all elements into out: (1) f32. For looking inside (`train.log_norms`).
void root_mean_square(Context& ctx, CView x, View out);

}  // namespace hyperslab::ops
