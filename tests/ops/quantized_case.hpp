// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/ops/quantized.hpp"
#include "ops_test.hpp"

namespace hyperslab::test {

/// A quantized matrix and the memory that it lies in, filled with a pattern.
struct StoredMatrix {
  StoredMatrix(ops::WeightFormat format, Dim group, Dim M, Dim K)
      : codes(filled_tensor(DType::u8, {M, format == ops::WeightFormat::int8 ? K : K / 2}, 0xAB)),
        scales(filled_tensor(scale_dtype(format), {group == 0 ? M : M * (K / group)}, 0xAB)),
        matrix{format, group, {M, K}, codes.view(), scales.view(), {}} {
    if (format != ops::WeightFormat::nf4 || group == 0) return;
    block_scales = filled_tensor(DType::f32,
                                 {(M * K / group + ops::kScaleBlock - 1) / ops::kScaleBlock}, 0xAB);
    matrix.block_scales = block_scales.view();
  }
  static DType scale_dtype(ops::WeightFormat format) {
    if (format == ops::WeightFormat::int8) return DType::f32;
    return format == ops::WeightFormat::int4 ? DType::f16 : DType::u8;
  }
  [[nodiscard]] ops::CQuantizedMatrix view() const { return ops::as_const(matrix); }
  /// The scale of group i, as the format's description says.
  [[nodiscard]] double scale(std::size_t i) const {
    const double stored = to_doubles(scales.view())[i];
    if (matrix.format != ops::WeightFormat::nf4) return stored;
    return static_cast<float>(stored) *
           block_scales.view().data<float>()[i / static_cast<std::size_t>(ops::kScaleBlock)];
  }

  Tensor codes;
  Tensor scales;
  Tensor block_scales{Device::cpu, DType::f32, {0}};
  ops::QuantizedMatrix matrix;
};

/// A format with a size of its groups.
struct GroupedFormat {
  ops::WeightFormat format;
  Dim group;  ///< 0: the row
};
inline constexpr GroupedFormat kGroupedFormats[] = {{ops::WeightFormat::int8, 0},
                                                    {ops::WeightFormat::int4, 2},
                                                    {ops::WeightFormat::int4, 32},
                                                    {ops::WeightFormat::int4, 64},
                                                    {ops::WeightFormat::nf4, 64}};

[[nodiscard]] inline StoredMatrix stored_matrix(const GroupedFormat& format, Dim M, Dim K) {
  return {format.format, format.group == 0 ? K : format.group, M, K};
}

}  // namespace hyperslab::test
