// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hyperslab/core/philox.hpp"

// Parts of updates with the same bits on every device.

namespace hyperslab::ops {

/// The amount that decoupled weight decay takes off a weight `x` at a learning rate of 1. A
/// cautious decay acts only on weights that the update, which subtracts `direction`, moves towards
/// zero, too: where both have one sign (Chen et al. 2025, "Cautious weight decay", algorithm 1).
template <class T>
HS_HOST_DEVICE constexpr T decay_of(T x, T direction, T decay, bool cautious) {
  return cautious && direction * x < T(0) ? T(0) : decay * x;
}

/// Random bits of an element in one update: the lower and the upper half are for its two moments.
/// A function of the weight before the update and of the first moment after it, unrounded: ranks
/// that hold equal bits round alike, wherever the element lies. The first moment tells weights of
/// equal values apart. The mixing is MurmurHash3's (Appleby 2011), fmix32.
HS_HOST_DEVICE inline std::uint32_t rounding_bits(std::uint32_t weight_bits,
                                                  std::uint32_t moment_bits, std::uint32_t update) {
  std::uint32_t h = weight_bits ^ (moment_bits * 0xCC9E2D51U) ^ (update * 0x9E3779B9U);
  h ^= h >> 16U;
  h *= 0x85EBCA6BU;
  h ^= h >> 13U;
  h *= 0xC2B2AE35U;
  h ^= h >> 16U;
  return h;
}

/// The bits of a float as bf16, rounded up as often as it is near the next one if `random` is
/// uniform on [0, 65536). Values that bf16 has stay as they are; so do infinity and NaN.
HS_HOST_DEVICE inline std::uint16_t bf16_rounded_stochastically(std::uint32_t float_bits,
                                                                std::uint32_t random) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  const bool is_finite = (float_bits & kExponent) != kExponent;
  const bool is_nan = !is_finite && (float_bits & 0x007FFFFFU) != 0;
  const std::uint32_t rounded = is_finite ? float_bits + (random & 0xFFFFU) : float_bits;
  return static_cast<std::uint16_t>((rounded >> 16U) | (is_nan ? 0x40U : 0U));
}

}  // namespace hyperslab::ops
