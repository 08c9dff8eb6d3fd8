// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>

#include "hyperslab/core/philox.hpp"

namespace hyperslab {

// Normals of the same bits on every device, for sources that are compiled without contraction into
// fused multiply-adds. Polynomials with explicit fused multiply-adds; the accuracy is near one unit
// in the last place, and it is essential that every device evaluates the same operations in the
// same order.

HS_HOST_DEVICE inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
HS_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// Natural logarithm of a normal positive float (after the reduction of fdlibm's logf).
HS_HOST_DEVICE inline float shared_log(float value) {
  const auto bits = bits_of(value);
  const std::uint32_t shifted = bits - 0x3F3504F3U;  // sqrt(1/2): mantissa into [0.707, 1.414)
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const float mantissa = float_of((shifted & 0x007FFFFFU) + 0x3F3504F3U);
  const float f = mantissa - 1.0F;
  const float s = f / (2.0F + f);
  const float z = s * s;
  const float w = z * z;
  const float odd = w * std::fmaf(w, 0.24279078841F, 0.40000972152F);
  const float even = z * std::fmaf(w, 0.28498786688F, 0.66666662693F);
  const float half_square = 0.5F * (f * f);
  const float tail = std::fmaf(s, half_square + (odd + even), exponent * 9.0580006145e-06F);
  return std::fmaf(exponent, 0.69313812256F, f - (half_square - tail));
}

/// sin and cos of 2 pi u for u in [0, 1), by quadrants.
HS_HOST_DEVICE inline void shared_sincos_2pi(float u, float& sine, float& cosine) {
  const float quadrant = std::floor(std::fmaf(u, 4.0F, 0.5F));
  const float x = std::fmaf(quadrant, -0.25F, u) * 6.28318530718F;  // [-pi/4, pi/4]
  const float z = x * x;
  const float s_poly =
      std::fmaf(std::fmaf(-1.9515295891e-4F, z, 8.3321608736e-3F), z, -1.6666654611e-1F);
  const float c_poly = std::fmaf(std::fmaf(2.443315711809948e-5F, z, -1.388731625493765e-3F), z,
                                 4.166664568298827e-2F);
  const float s = std::fmaf(s_poly * z, x, x);
  const float c = std::fmaf(c_poly, z * z, std::fmaf(-0.5F, z, 1.0F));
  switch (static_cast<int>(quadrant) & 3) {
    case 0: sine = s, cosine = c; break;
    case 1: sine = c, cosine = -s; break;
    case 2: sine = -s, cosine = -c; break;
    default: sine = -c, cosine = s; break;
  }
}

/// Two standard normals from two words by Box and Muller (1958).
HS_HOST_DEVICE inline void philox_normal_pair(std::uint32_t word0, std::uint32_t word1,
                                              float& normal0, float& normal1) {
  // (0, 1]: the logarithm of zero does not occur.
  const float u0 = static_cast<float>((word0 >> 8) + 1U) * 0x1p-24F;
  const float u1 = philox_uniform(word1);
  const float radius = std::sqrt(-2.0F * shared_log(u0));
  float sine = 0;
  float cosine = 0;
  shared_sincos_2pi(u1, sine, cosine);
  normal0 = radius * cosine;
  normal1 = radius * sine;
}

/// The four standard normals of elements 4 * block to 4 * block + 3 of a stream.
HS_HOST_DEVICE inline void philox_normals(std::uint64_t block, std::uint64_t seed,
                                          std::uint64_t stream, float (&normals)[4]) {
  const PhiloxCounter words = philox(philox_counter(block, stream), seed);
  philox_normal_pair(words.x[0], words.x[1], normals[0], normals[1]);
  philox_normal_pair(words.x[2], words.x[3], normals[2], normals[3]);
}

}  // namespace hyperslab
