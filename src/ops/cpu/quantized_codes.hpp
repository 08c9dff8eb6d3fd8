// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "hyperslab/ops/quantized.hpp"
#include "widen.hpp"

// Rounding of groups of weights or activations to codes. All in f32 and in a fixed order of
// operations, so that any device can compute the same bits; sources that include this are compiled
// without merging products and sums.

namespace hyperslab::ops::cpu {

inline float to_single(float value) { return value; }
inline float to_single(double value) { return static_cast<float>(value); }
inline float to_single(bf16 value) { return to_float(value); }
inline float to_single(f16 value) { return to_float(value); }

template <class T>
T from_single(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(value);
  } else {
    return static_cast<T>(value);
  }
}

/// The larger of two magnitudes. Bits of nonnegative floats are ordered as the floats are, with
/// infinity and NaN above all numbers, so that neither gets lost.
inline std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
}

template <class T>
float amax_of(const T* values, Dim count) {
  std::uint32_t most = 0;
  for (Dim i = 0; i < count; ++i) most = std::max(most, magnitude_bits(to_single(values[i])));
  return std::bit_cast<float>(most);
}

/// True if values can be divided by a scale: not if it is 0, infinite or NaN. The codes of such a
/// group stand for zero.
inline bool divides(float scale) { return scale > 0 && scale <= std::numeric_limits<float>::max(); }

/// The nearest integer, ties to even, for magnitudes below 2^22; vectorizes on every processor.
inline float nearest(float value) {
  constexpr float kShift = 12582912.0F;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

/// The largest code of a format whose codes are evenly spaced.
template <WeightFormat format>
inline constexpr float kMostCode = format == WeightFormat::int8 ? 127.0F : 7.0F;

/// Between neighbors of kNormalFloat4: the largest f32 that is not above their middle. A value is
/// nearer to the upper one exactly if it is above this.
inline constexpr std::array<float, 15> kNormalFloatSteps = [] {
  std::array<float, 15> steps{};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double middle =  // exact: the sum of two neighbors has fewer than 53 bits
        (static_cast<double>(kNormalFloat4[i]) + static_cast<double>(kNormalFloat4[i + 1])) / 2;
    auto step = static_cast<float>(middle);
    if (static_cast<double>(step) > middle) {
      const auto bits = std::bit_cast<std::uint32_t>(step);
      step = std::bit_cast<float>(step > 0 ? bits - 1 : bits + 1);
    }
    steps[i] = step;
  }
  return steps;
}();

/// The code of a value: int8 and int4 signed, nf4 an index. The scale divides.
template <WeightFormat format>
[[gnu::always_inline]] inline int code_of(float value, float scale) {
  const float quotient = value / scale;
  if constexpr (format == WeightFormat::nf4) {
    int code = 0;
#pragma GCC unroll 15
    for (const float step : kNormalFloatSteps) code += quotient > step ? 1 : 0;
    return code;
  } else {
    constexpr float kMost = kMostCode<format>;
    return static_cast<int>(nearest(std::min(std::max(quotient, -kMost), kMost)));
  }
}

/// The code of zero.
template <WeightFormat format>
inline constexpr int kZeroCode = format == WeightFormat::nf4 ? 7 : 0;

/// The value of a code, in units of the scale.
template <WeightFormat format>
[[gnu::always_inline]] inline float level_of(int code) {
  if constexpr (format == WeightFormat::nf4) {
    return kNormalFloat4[static_cast<std::size_t>(code)];
  } else {
    return static_cast<float>(code);
  }
}

/// Four bits of a code as they are stored.
template <WeightFormat format>
[[gnu::always_inline]] constexpr unsigned nibble_of(int code) {
  return static_cast<unsigned>(format == WeightFormat::int4 ? code + 8 : code);
}

/// The value of each code of four bits.
template <WeightFormat format>
inline constexpr std::array<float, 16> kNibbleLevels = [] {
  if constexpr (format == WeightFormat::nf4) {
    return kNormalFloat4;
  } else {
    std::array<float, 16> levels{};
    for (std::size_t i = 0; i < 16; ++i) levels[i] = static_cast<float>(i) - 8.0F;
    return levels;
  }
}();

/// Calls body with std::integral_constant<WeightFormat, format>.
template <class Body>
void with_format(WeightFormat format, Body&& body) {
  using enum WeightFormat;
  switch (format) {
    case int8: return std::forward<Body>(body)(std::integral_constant<WeightFormat, int8>());
    case int4: return std::forward<Body>(body)(std::integral_constant<WeightFormat, int4>());
    case nf4: return std::forward<Body>(body)(std::integral_constant<WeightFormat, nf4>());
  }
}

/// The scale of a group of the matrix, counted row by row.
template <WeightFormat format>
[[gnu::always_inline]] inline float scale_of(const CQuantizedMatrix& weight, Dim group) {
  if constexpr (format == WeightFormat::int8) {
    return static_cast<const float*>(weight.scales.raw())[group];
  } else if constexpr (format == WeightFormat::int4) {
    return to_float(static_cast<const f16*>(weight.scales.raw())[group]);
  } else {
    const float code = static_cast<const std::uint8_t*>(weight.scales.raw())[group];
    return code * static_cast<const float*>(
                      weight.block_scales.raw())[(weight.first_scale + group) / kScaleBlock];
  }
}

}  // namespace hyperslab::ops::cpu
