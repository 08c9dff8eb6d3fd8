// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// y = a + b, equal shapes; y may alias a or b.
void add(Context& ctx, CView a, CView b, View y);
/// y = scale * x; equal shapes; x: f32, f64, bf16 or f16; y: the same dtype, or f32 of 16 bits; y
/// may alias an x of its dtype.
void scale(Context& ctx, float scale, CView x, View y);
/// y = value everywhere; f32 or f64 (zero in any dtype).
void fill(Context& ctx, float value, View y);
/// y = x, converting between f64, f32, bf16 and f16 with rounding to nearest even.
void cast(Context& ctx, CView x, View y);

/// y = cap tanh(x / cap) (Gemma 2, Riviere et al. 2024, section 2); y may alias x.
void softcap(Context& ctx, float cap, CView x, View y);
/// dx = dy (1 - (y / cap)^2) of softcap's y; dx may alias dy.
void softcap_backward(Context& ctx, float cap, CView y, CView dy, View dx);

/// Which normals: standard normals of stream `stream` under `seed`, times `std_deviation`.
struct NormalSpec {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  float std_deviation = 1;
};
/// y (R, C), f32, on a CPU also f64: the normal of global element first + r * pitch + c at (r, c).
/// The same bits on every device (Philox; Box & Muller 1958).
void fill_normal(Context& ctx, const NormalSpec& spec, std::uint64_t first, std::uint64_t pitch,
                 View y);

/// Root mean square of all elements into out: (1) f32. For `train.log_norms`.
void root_mean_square(Context& ctx, CView x, View out);

}  // namespace hyperslab::ops
