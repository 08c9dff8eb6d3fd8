// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <limits>

#include "common.cuh"
#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops::cuda {

/// The values of NF4, and for each neighboring two the largest float that is not above their
/// middle: a value belongs to the code that counts the middles below it.
struct NormalFloat {
  float values[16];
  float middles[15];
};
[[nodiscard]] inline NormalFloat normal_float() {
  NormalFloat table{};
  for (std::size_t i = 0; i < 16; ++i) table.values[i] = kNormalFloat4[i];
  for (std::size_t i = 0; i < 15; ++i) {
    const double middle = (double{kNormalFloat4[i]} + double{kNormalFloat4[i + 1]}) / 2;
    auto rounded = static_cast<float>(middle);
    if (rounded > middle)
      rounded = std::nextafter(rounded, -std::numeric_limits<float>::infinity());
    table.middles[i] = rounded;
  }
  return table;
}

/// The type in which the scale of a group is stored.
template <WeightFormat kFormat>
struct StoredScale;
template <>
struct StoredScale<WeightFormat::int8> {
  using Type = float;
};
template <>
struct StoredScale<WeightFormat::int4> {
  using Type = f16;
};
template <>
struct StoredScale<WeightFormat::nf4> {
  using Type = std::uint8_t;
};

/// Elements of a quantized matrix as a flat array.
template <WeightFormat kFormat>
struct QuantizedElements {
  using Scale = typename StoredScale<kFormat>::Type;
  const std::uint8_t* codes;
  const Scale* scales;
  const float* block_scales;
  Dim group;
  NormalFloat table;

  [[nodiscard]] __device__ float scale_of(Dim group_index) const {
    if constexpr (kFormat == WeightFormat::nf4) {
      return __fmul_rn(static_cast<float>(scales[group_index]),
                       block_scales[group_index / kScaleBlock]);
    } else {
      return to_real(scales[group_index]);
    }
  }
  /// Without its scale. `values`: NF4's, where they are read fast.
  [[nodiscard]] __device__ float code_at(Dim i, const float* values) const {
    if constexpr (kFormat == WeightFormat::int8) {
      return static_cast<float>(static_cast<std::int8_t>(codes[i]));
    } else {
      const int code = codes[i / 2] >> (i % 2 * 4) & 15;
      return kFormat == WeightFormat::nf4 ? values[code] : static_cast<float>(code - 8);
    }
  }
};

template <WeightFormat kFormat>
[[nodiscard]] QuantizedElements<kFormat> elements_of(const CQuantizedMatrix& matrix) {
  using Scale = typename StoredScale<kFormat>::Type;
  return {matrix.codes.data<std::uint8_t>(), matrix.scales.data<Scale>(),
          optional_data<float>(matrix.block_scales), matrix.group, normal_float()};
}

/// An exact sum of products of codes as a real, in the order and rounding that every device has.
/// `bias`: of this column, or null.
template <class T>
__device__ T scaled_sum(int sum, float row_scale, float weight_scale, const T* bias) {
  const float product = __fmul_rn(__fmul_rn(static_cast<float>(sum), row_scale), weight_scale);
  return from_real<T>(bias == nullptr ? product : __fadd_rn(product, to_real(*bias)));
}

/// Calls body.operator()<kFormat>().
template <class Body>
void with_format(WeightFormat format, Body&& body) {
  switch (format) {
    case WeightFormat::int8: return body.template operator()<WeightFormat::int8>();
    case WeightFormat::int4: return body.template operator()<WeightFormat::int4>();
    case WeightFormat::nf4: return body.template operator()<WeightFormat::nf4>();
  }
}

}  // namespace hyperslab::ops::cuda
