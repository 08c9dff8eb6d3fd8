// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/fp8.hpp"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "fp8_case.hpp"
#include "hyperslab/core/transfer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Fp8 : public OpsTest {
 protected:
  StoredFp8 straight(CView x, Fp8Format format, Fp8Scaling scaling) {
    StoredFp8 out = stored_fp8(format, scaling, x.shape()[0], x.shape()[1]);
    fp8_quantize(ctx, x, out.matrix(), {});
    return out;
  }
  StoredFp8 transposed(CView x, Fp8Format format, Fp8Scaling scaling) {
    StoredFp8 out = stored_fp8(format, scaling, x.shape()[1], padded(x.shape()[0]));
    fp8_quantize(ctx, x, {}, out.matrix());
    return out;
  }
  /// The FP8 values as floats, without scales: products with the identity.
  std::vector<double> values(StoredFp8& stored) {
    const Dim K = stored.values.view().shape()[1];
    Tensor identity = filled_tensor(DType::f32, {K, K}, 0);
    for (Dim i = 0; i < K; ++i) identity.view().data<float>()[i * K + i] = 448;
    StoredFp8 one = straight(identity.view(), Fp8Format::e4m3, stored.scaling);
    Tensor product = filled_tensor(DType::f32, {stored.values.view().shape()[0], K}, 0);
    fp8_matmul(ctx, as_const(stored.matrix()), as_const(one.matrix()), {}, Fp8Sums::exact,
               Accumulate::no, product.view());
    std::vector<double> out = to_doubles(product.view());
    for (double& value : out) value /= 448;
    return out;
  }
};

const std::vector<Fp8Format> kFormats = {Fp8Format::e4m3, Fp8Format::e5m2};
const std::vector<Fp8Scaling> kScalings = {Fp8Scaling::tensor, Fp8Scaling::row};

TEST_F(Fp8, ValuesAreThoseOfMlDtypes) {
  std::ifstream file(HYPERSLAB_GOLDEN "/fp8_values.txt");
  std::uint32_t bits = 0;
  std::vector<std::uint32_t> e4m3;
  std::vector<std::uint32_t> e5m2;
  std::vector<float> numbers;
  for (std::uint32_t a = 0, b = 0; file >> std::hex >> bits >> a >> b;) {
    numbers.push_back(std::bit_cast<float>(bits));
    e4m3.push_back(a);
    e5m2.push_back(b);
  }
  ASSERT_GT(numbers.size(), 500U);
  for (const Fp8Format format : kFormats) {
    const float most = largest_value(format);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      // Of a row whose largest value has the scale 1.
      Tensor x = filled_tensor(DType::f32, {1, 16}, 0);
      x.view().data<float>()[0] = most;
      x.view().data<float>()[1] = std::clamp(numbers[i], -most, most);
      const StoredFp8 stored = straight(x.view(), format, Fp8Scaling::row);
      ASSERT_EQ(stored.scales.view().data<float>()[0], 1);
      ASSERT_EQ(stored.values.view().data<std::uint8_t>()[1],
                format == Fp8Format::e4m3 ? e4m3[i] : e5m2[i])
          << numbers[i];
    }
  }
}

TEST_F(Fp8, ValuesMoveAtMostHalfAStep) {
  for (const Fp8Format format : kFormats) {
    for (const Fp8Scaling scaling : kScalings) {
      const Tensor x = random_tensor(DType::f32, {23, 48}, 3, 0.01);
      StoredFp8 stored = straight(x.view(), format, scaling);
      const std::vector<double> found = values(stored);
      const std::vector<double> expected = to_doubles(x.view());
      const double relative = format == Fp8Format::e4m3 ? 0x1p-4 : 0x1p-3;
      const double smallest = format == Fp8Format::e4m3 ? 0x1p-10 : 0x1p-17;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double scale =
            stored.scales.view().data<float>()[scaling == Fp8Scaling::row ? i / 48 : 0];
        EXPECT_LE(std::abs(found[i] - expected[i]),
                  1.0001 * std::max(relative * std::abs(expected[i]), smallest * scale));
      }
    }
  }
}

TEST_F(Fp8, AScaleTakesTheAmaxToTheLargestValue) {
  Tensor x = filled_tensor(DType::f32, {2, 16}, 0.25);
  x.view().data<float>()[3] = -7;
  x.view().data<float>()[20] = 0.5;
  StoredFp8 tensor = straight(x.view(), Fp8Format::e4m3, Fp8Scaling::tensor);
  EXPECT_EQ(to_doubles(tensor.scales.view()), std::vector<double>{7.0F / 448.0F});
  EXPECT_EQ(tensor.values.view().data<std::uint8_t>()[3], 0xFE);
  StoredFp8 rows = straight(x.view(), Fp8Format::e5m2, Fp8Scaling::row);
  EXPECT_EQ(to_doubles(rows.scales.view()),
            (std::vector<double>{7.0F / 57344.0F, 0.5F / 57344.0F}));
  EXPECT_EQ(to_doubles(rows.amax.view()), (std::vector<double>{7, 0.5}));
}

TEST_F(Fp8, ATransposeHasTheValuesOfTheTransposedMatrix) {
  const Dim rows = 21;
  const Dim columns = 32;
  const Tensor x = random_tensor(DType::f32, {rows, columns}, 5);
  Tensor turned = filled_tensor(DType::f32, {columns, padded(rows)}, 0);
  for (Dim i = 0; i < rows; ++i) {
    for (Dim j = 0; j < columns; ++j) {
      turned.view().data<float>()[j * padded(rows) + i] = x.view().data<float>()[i * columns + j];
    }
  }
  for (const Fp8Scaling scaling : kScalings) {
    StoredFp8 found = transposed(x.view(), Fp8Format::e4m3, scaling);
    StoredFp8 expected = straight(turned.view(), Fp8Format::e4m3, scaling);
    EXPECT_EQ(to_doubles(found.values.view()), to_doubles(expected.values.view()));
    EXPECT_EQ(to_doubles(found.scales.view()), to_doubles(expected.scales.view()));
    StoredFp8 both = stored_fp8(Fp8Format::e4m3, scaling, rows, columns);
    StoredFp8 again = stored_fp8(Fp8Format::e4m3, scaling, columns, padded(rows));
    fp8_quantize(ctx, x.view(), both.matrix(), again.matrix());
    EXPECT_EQ(to_doubles(again.values.view()), to_doubles(expected.values.view()));
  }
}

TEST_F(Fp8, AmaxesThatAreGivenAreNotSoughtAgain) {
  const Tensor x = random_tensor(DType::f32, {21, 32}, 5);
  StoredFp8 found = straight(x.view(), Fp8Format::e4m3, Fp8Scaling::tensor);
  StoredFp8 turned = transposed(x.view(), Fp8Format::e4m3, Fp8Scaling::tensor);
  StoredFp8 given = stored_fp8(Fp8Format::e4m3, Fp8Scaling::tensor, 32, padded(21));
  given.amax.view().data<float>()[0] = found.amax.view().data<float>()[0];
  fp8_quantize(ctx, x.view(), {}, given.matrix(), Fp8Amax::given);
  EXPECT_EQ(to_doubles(given.values.view()), to_doubles(turned.values.view()));
  EXPECT_EQ(to_doubles(given.scales.view()), to_doubles(turned.scales.view()));
  given.amax.view().data<float>()[0] *= 4;
  fp8_quantize(ctx, x.view(), {}, given.matrix(), Fp8Amax::given);
  EXPECT_EQ(given.scales.view().data<float>()[0], 4 * turned.scales.view().data<float>()[0]);
  StoredFp8 rows = stored_fp8(Fp8Format::e4m3, Fp8Scaling::row, 21, 32);
  EXPECT_THROW(fp8_quantize(ctx, x.view(), rows.matrix(), {}, Fp8Amax::given), Error);
}

TEST_F(Fp8, ZerosAndTinyValuesHaveFiniteScales) {
  for (const double value : {0.0, 1e-38, 1e-30}) {
    const Tensor x = filled_tensor(DType::f32, {3, 16}, value);
    StoredFp8 stored = straight(x.view(), Fp8Format::e5m2, Fp8Scaling::tensor);
    EXPECT_GT(stored.scales.view().data<float>()[0], 0);
    for (const double found : values(stored)) EXPECT_NEAR(found, value, 1e-30);
  }
}

TEST_F(Fp8, WhatIsNotFiniteDoesNotGetLost) {
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor x = filled_tensor(DType::f32, {2, 16}, 1);
    x.view().data<float>()[5] = static_cast<float>(value);
    StoredFp8 left = straight(x.view(), Fp8Format::e4m3, Fp8Scaling::row);
    const Tensor ones = filled_tensor(DType::f32, {16, 16}, 1);
    StoredFp8 right = straight(ones.view(), Fp8Format::e4m3, Fp8Scaling::row);
    Tensor c = filled_tensor(DType::f32, {2, 16}, 0);
    fp8_matmul(ctx, as_const(left.matrix()), as_const(right.matrix()), {}, Fp8Sums::exact,
               Accumulate::no, c.view());
    EXPECT_TRUE(std::isnan(c.view().data<float>()[0]));
    EXPECT_NEAR(c.view().data<float>()[16], 16, 1e-5);
  }
}

TEST_F(Fp8, ProductsAreThoseOfTheRoundedOperands) {
  const Dim M = 70;
  const Dim N = 130;
  const Dim K = 272;
  const Tensor x = random_tensor(DType::f32, {M, K}, 1);
  const Tensor w = random_tensor(DType::f32, {N, K}, 2);
  const Tensor bias = random_tensor(DType::f32, {N}, 3);
  const Tensor before = random_tensor(DType::f32, {M, N}, 4);
  for (const Fp8Scaling scaling : kScalings) {
    StoredFp8 a = straight(x.view(), Fp8Format::e5m2, scaling);
    StoredFp8 b = straight(w.view(), Fp8Format::e4m3, scaling);
    const std::vector<double> left = values(a);
    const std::vector<double> right = values(b);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      Tensor c = filled_tensor(DType::f32, {M, N}, 0);
      copy(ctx, before.view(), c.view());
      const bool adds = accumulate == Accumulate::yes;
      fp8_matmul(ctx, as_const(a.matrix()), as_const(b.matrix()), adds ? CView() : bias.view(),
                 Fp8Sums::exact, accumulate, c.view());
      for (Dim m = 0; m < M; ++m) {
        for (Dim n = 0; n < N; ++n) {
          double sum = adds ? before.view().data<float>()[m * N + n] : bias.view().data<float>()[n];
          for (Dim k = 0; k < K; ++k) {
            sum += left[static_cast<std::size_t>(m * K + k)] *
                   right[static_cast<std::size_t>(n * K + k)];
          }
          ASSERT_NEAR(c.view().data<float>()[m * N + n], sum, 1e-4) << m << ", " << n;
        }
      }
    }
  }
}

TEST_F(Fp8, PartsOfQuantizeGiveItsBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor(dtype, {37, 48}, 1);
    StoredFp8 whole = stored_fp8(Fp8Format::e4m3, Fp8Scaling::tensor, 37, 48);
    StoredFp8 turned = stored_fp8(Fp8Format::e4m3, Fp8Scaling::tensor, 48, padded(37));
    fp8_quantize(ctx, x.view(), whole.matrix(), turned.matrix());
    StoredFp8 parts = stored_fp8(Fp8Format::e4m3, Fp8Scaling::tensor, 37, 48);
    fp8_amax(ctx, x.view().flat(), parts.amax.view());
    fp8_scales(ctx, Fp8Format::e4m3, parts.amax.view(), parts.scales.view());
    EXPECT_EQ(to_doubles(parts.amax.view()), to_doubles(whole.amax.view()));
    EXPECT_EQ(to_doubles(parts.scales.view()), to_doubles(whole.scales.view()));
    Tensor transposed = filled_tensor(DType::u8, {48, padded(37)}, 1);
    fp8_transpose(ctx, whole.values.view(), transposed.view());
    EXPECT_EQ(to_doubles(transposed.view()), to_doubles(turned.values.view()));
  }
}

TEST_F(Fp8, AmaxIsNanIfAnElementIs) {
  Tensor x = filled_tensor(DType::f32, {32}, 3);
  x.view().data<float>()[7] = -std::numeric_limits<float>::quiet_NaN();
  Tensor amax = filled_tensor(DType::f32, {1}, 9);
  fp8_amax(ctx, x.view(), amax.view());
  // Above all magnitudes as an integer, too.
  EXPECT_GT(std::bit_cast<std::int32_t>(amax.view().data<float>()[0]), 0x7F800000);
  fp8_scales(ctx, Fp8Format::e5m2, amax.view(), amax.view());
  EXPECT_TRUE(std::isnan(amax.view().data<float>()[0]));
}

TEST_F(Fp8, OperandsThatDoNotFitAreRefused) {
  const Tensor x = random_tensor(DType::f32, {4, 24}, 1);
  StoredFp8 odd = stored_fp8(Fp8Format::e4m3, Fp8Scaling::tensor, 4, 24);
  EXPECT_THROW(fp8_quantize(ctx, x.view(), odd.matrix(), {}), Error);
  EXPECT_THROW(fp8_quantize(ctx, x.view(), {}, {}), Error);
  EXPECT_THROW(fp8_amax(ctx, filled_tensor(DType::f32, {24}, 1).view(), odd.amax.view()), Error);
  Tensor turned = filled_tensor(DType::u8, {24, 16}, 1);
  EXPECT_THROW(fp8_transpose(ctx, odd.values.view(), turned.view()), Error);
  StoredFp8 a = stored_fp8(Fp8Format::e5m2, Fp8Scaling::tensor, 4, 32);
  StoredFp8 b = stored_fp8(Fp8Format::e5m2, Fp8Scaling::tensor, 8, 32);
  Tensor c = filled_tensor(DType::f32, {4, 8}, 0);
  EXPECT_THROW(fp8_matmul(ctx, as_const(a.matrix()), as_const(b.matrix()), {}, Fp8Sums::exact,
                          Accumulate::no, c.view()),
               Error);
}

}  // namespace
}  // namespace hyperslab::ops
