// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scales of 8-bit floats, with the same bits on every device.

namespace hyperslab::ops {

/// Smaller magnitudes are scaled like this one, so that the inverse is finite.
inline constexpr float kSmallestMagnitude = 0x1p-100F;

/// The factor of FP8 values. NaN stays NaN.
[[nodiscard]] constexpr float fp8_scale(float magnitude, float largest_value) {
  return (magnitude < kSmallestMagnitude ? kSmallestMagnitude : magnitude) / largest_value;
}
/// The factor of values before they are rounded.
[[nodiscard]] constexpr float fp8_inverse(float magnitude, float largest_value) {
  return largest_value / (magnitude < kSmallestMagnitude ? kSmallestMagnitude : magnitude);
}

}  // namespace hyperslab::ops
