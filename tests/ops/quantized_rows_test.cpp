// SPDX-License-Identifier: Apache-2.0
// Rows of int8 of which ranks hold parts.
#include <cmath>
#include <cstring>
#include <limits>

#include "quantized_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Dim kRows = 37;
constexpr Dim kColumns = 330;
constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

class QuantizedRows : public OpsTest {
 protected:
  /// Columns [first, first + count) of a matrix.
  static Tensor columns(CView matrix, Dim first, Dim count) {
    const auto [M, K] = matrix.dims<2>("matrix");
    const std::vector<double> all = to_doubles(matrix);
    std::vector<double> part;
    for (Dim row = 0; row < M; ++row) {
      for (Dim i = 0; i < count; ++i) part.push_back(all[row * K + first + i]);
    }
    return tensor_of(matrix.dtype(), {M, count}, part);
  }
  /// The largest of the scales that parts of rows have, as ranks find it.
  Tensor scales_of(const std::vector<Tensor>& parts) {
    Tensor largest = filled_tensor(DType::i32, {kRows}, 0);
    for (const Tensor& part : parts) {
      Tensor found = poisoned(DType::f32, {kRows});
      int8_row_scales(ctx, part.view(), found.view());
      for (Dim row = 0; row < kRows; ++row) {
        std::int32_t bits = 0;
        std::memcpy(&bits, found.view().data<float>() + row, sizeof(bits));
        auto* most = largest.view().data<std::int32_t>() + row;
        *most = std::max(*most, bits);
      }
    }
    Tensor scales(Device::cpu, DType::f32, {kRows});
    std::memcpy(scales.view().raw(), largest.view().raw(), largest.view().bytes());
    return scales;
  }
};

/// A row of zeros, and rows whose largest elements are in different parts.
Tensor weights(DType dtype) {
  const Tensor values = random_tensor(dtype, {kRows, kColumns}, 3);
  std::vector<double> all = to_doubles(values.view());
  std::fill_n(all.begin() + 5 * kColumns, kColumns, 0.0);
  all[7 * kColumns + 2] = -40;
  all[8 * kColumns + 329] = 40;
  return tensor_of(dtype, {kRows, kColumns}, all);
}

TEST_F(QuantizedRows, PartsHaveTheBitsOfTheWhole) {
  for (const DType dtype : kDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Tensor whole = weights(dtype);
    StoredMatrix expected = stored_matrix({WeightFormat::int8, 0}, kRows, kColumns);
    quantize(ctx, whole.view(), expected.matrix);
    Tensor rounded = poisoned(dtype, {kRows, kColumns});
    fake_quantize(ctx, WeightFormat::int8, kColumns, whole.view(), rounded.view());
    // Unequal parts, one of a single column.
    const std::vector<std::array<Dim, 2>> cuts = {{0, 110}, {110, 1}, {111, 219}};
    std::vector<Tensor> parts;
    for (const auto& [first, count] : cuts) parts.push_back(columns(whole.view(), first, count));

    const Tensor scales = scales_of(parts);

    EXPECT_TRUE(same_bits(scales.view(), expected.scales.view()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& [first, count] = cuts[i];
      StoredMatrix found = stored_matrix({WeightFormat::int8, 0}, kRows, count);
      std::memcpy(found.scales.view().raw(), scales.view().raw(), scales.view().bytes());
      Tensor fake = poisoned(dtype, {kRows, count});
      quantize_scaled(ctx, parts[i].view(), found.matrix);
      fake_quantize_scaled(ctx, parts[i].view(), scales.view(), fake.view());
      EXPECT_TRUE(
          same_bits(found.codes.view(), columns(expected.codes.view(), first, count).view()));
      EXPECT_TRUE(same_bits(fake.view(), columns(rounded.view(), first, count).view()));
      fake_quantize_scaled(ctx, parts[i].view(), scales.view(), parts[i].view());  // in place
      EXPECT_TRUE(same_bits(parts[i].view(), fake.view()));
    }
  }
}

/// Also in the parts of a row that hold numbers alone.
TEST_F(QuantizedRows, WhatIsNotFiniteSpoilsTheWholeRow) {
  std::vector<Tensor> parts;
  for (int i = 0; i < 2; ++i) parts.push_back(filled_tensor(DType::f32, {kRows, 4}, 1));
  parts[0].view().data<float>()[4] = std::numeric_limits<float>::quiet_NaN();
  parts[1].view().data<float>()[8] = std::numeric_limits<float>::infinity();

  const Tensor scales = scales_of(parts);

  for (const Tensor& part : parts) {
    Tensor out = poisoned(DType::f32, {kRows, 4});
    fake_quantize_scaled(ctx, part.view(), scales.view(), out.view());
    EXPECT_EQ(out.view().data<float>()[0], 1);
    for (const Dim row : {1, 2}) {
      EXPECT_TRUE(std::isnan(out.view().data<float>()[row * 4 + 3])) << row;
    }
  }
}

TEST_F(QuantizedRows, WrongOperandsAreNamed) {
  Tensor weight = filled_tensor(DType::f32, {3, 4}, 1);
  Tensor few = filled_tensor(DType::f32, {2}, 1);
  expect_error_naming("int8_row_scales scales",
                      [&] { int8_row_scales(ctx, weight.view(), few.view()); });
  expect_error_naming("fake_quantize_scaled scales",
                      [&] { fake_quantize_scaled(ctx, weight.view(), few.view(), weight.view()); });
  const StoredMatrix four = stored_matrix({WeightFormat::int4, 2}, 3, 4);
  expect_error_naming("only int8 has a scale a row",
                      [&] { quantize_scaled(ctx, weight.view(), four.matrix); });
}

}  // namespace
}  // namespace hyperslab::ops
