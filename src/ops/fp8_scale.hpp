// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scales of 8-bit floats, with the same bits on every device.

namespace hyperslab::ops {

/// A smaller amax is scaled like this one, so that the inverse is finite.
inline constexpr float kSmallestAmax = 0x1p-100F;

/// The factor of FP8 values. NaN stays NaN.
[[nodiscard]] constexpr float fp8_scale(float amax, float largest_value) {
  return (amax < kSmallestAmax ? kSmallestAmax : amax) / largest_value;
}
/// The factor of values before they are rounded.
[[nodiscard]] constexpr float fp8_inverse(float amax, float largest_value) {
  return largest_value / (amax < kSmallestAmax ? kSmallestAmax : amax);
}

}  // namespace hyperslab::ops
