// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "hyperslab/core/view.hpp"

namespace hyperslab::ops::cpu {

/// The value exactly: to_float(bf16) inside loops that vectorize.
[[gnu::always_inline]] inline float widened(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[gnu::always_inline]] inline float widened(float value) { return value; }
[[gnu::always_inline]] inline double widened(double value) { return value; }

/// The type in which elements stored as T are computed.
template <class T>
using Computed = decltype(widened(T()));

/// wide[0, count) = narrow[0, count), exactly. The bits are to_float(bf16)'s; the loop
/// vectorizes.
inline void widen(const bf16* narrow, Dim count, float* wide) {
  for (Dim i = 0; i < count; ++i) wide[i] = widened(narrow[i]);
}

/// narrow[0, count) = wide[0, count), to nearest, ties to even. The bits are to_bf16(float)'s: NaN
/// stays NaN. The loop vectorizes.
inline void round_to_bf16(const float* wide, Dim count, bf16* narrow) {
  for (Dim i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(wide[i]);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    narrow[i].bits = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
  }
}

}  // namespace hyperslab::ops::cpu
