// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hyperslab::ops::cpu {

/// e^x within 2 units in the last place, without branches so that loops vectorize; 0 and infinity
/// beyond the range of float, NaN stays NaN. Polynomial of Cephes' expf.
[[gnu::always_inline]] inline float exponential(float x) {
  x = x < -104.0F ? -104.0F : x;
  x = x > 89.0F ? 89.0F : x;
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23: rounds to an integer held in the low bits
  const float shifted = x * 1.44269504F + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float poly = 1.9875691500e-4F;
  poly = poly * r + 1.3981999507e-3F;
  poly = poly * r + 8.3334519073e-3F;
  poly = poly * r + 4.1665795894e-2F;
  poly = poly * r + 1.6666665459e-1F;
  poly = poly * r + 5.0000001201e-1F;
  const float value = poly * (r * r) + r + 1.0F;
  // 2^n in two factors: n reaches from the smallest denormal to beyond the largest float.
  const auto exponent = std::bit_cast<std::int32_t>(shifted) - 0x4B400000;
  const std::int32_t half = exponent >> 1;
  const auto scale0 = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const auto scale1 = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return value * scale0 * scale1;
}
[[gnu::always_inline]] inline double exponential(double x) { return std::exp(x); }

/// Without branches, so that loops vectorize. The float version is Cephes' tanhf.
[[gnu::always_inline]] inline float hyperbolic_tangent(float x) {
  const float z = x * x;
  float poly = -5.70498872745e-3F;
  poly = poly * z + 2.06390887954e-2F;
  poly = poly * z - 5.37397155531e-2F;
  poly = poly * z + 1.33314422036e-1F;
  poly = poly * z - 3.33332819422e-1F;
  const float magnitude = std::fabs(x);
  const float large = 1.0F - 2.0F / (exponential(2.0F * magnitude) + 1.0F);
  return magnitude < 0.625F ? poly * z * x + x : std::copysign(large, x);
}
[[gnu::always_inline]] inline double hyperbolic_tangent(double x) { return std::tanh(x); }

template <class T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

/// Phi(x), the cumulative normal distribution, without cancellation in the lower tail. The float
/// version is the Chebyshev fit of erfc in Press et al., Numerical Recipes, section 6.2 (1.2e-7).
[[gnu::always_inline]] inline float normal_cdf(float x) {
  const float z = std::fabs(x) * 0.70710678F;
  const float t = 1.0F / (1.0F + 0.5F * z);
  float poly = 0.17087277F;
  poly = poly * t - 0.82215223F;
  poly = poly * t + 1.48851587F;
  poly = poly * t - 1.13520398F;
  poly = poly * t + 0.27886807F;
  poly = poly * t - 0.18628806F;
  poly = poly * t + 0.09678418F;
  poly = poly * t + 0.37409196F;
  poly = poly * t + 1.00002368F;
  poly = poly * t - 1.26551223F;
  const float tail = 0.5F * t * exponential(poly - 0.5F * x * x);
  return x > 0.0F ? 1.0F - tail : tail;
}
[[gnu::always_inline]] inline double normal_cdf(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

}  // namespace hyperslab::ops::cpu
