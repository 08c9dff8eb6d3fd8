// SPDX-License-Identifier: Apache-2.0
// 8-bit floats that share a scale with 127 neighbours, or with those of 128 rows.
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "fp8_case.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/transfer.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

const std::vector<Fp8Scaling> kGroups = {Fp8Scaling::group, Fp8Scaling::block};

class Fp8Groups : public OpsTest {
 protected:
  static StoredFp8 empty_straight(CView x, Fp8Scaling scaling, Fp8Format format = Fp8Format::e4m3) {
    return stored_fp8(format, scaling, fp8_rows(scaling, x.shape()[0]), x.shape()[1]);
  }
  static StoredFp8 empty_transposed(CView x, Fp8Scaling scaling,
                                    Fp8Format format = Fp8Format::e4m3) {
    return stored_fp8(format, scaling, x.shape()[1], padded(x.shape()[0]));
  }
  StoredFp8 straight(CView x, Fp8Scaling scaling, Fp8Format format = Fp8Format::e4m3) {
    StoredFp8 out = empty_straight(x, scaling, format);
    fp8_quantize(ctx, x, out.matrix(), {});
    return out;
  }
  StoredFp8 transposed(CView x, Fp8Scaling scaling) {
    StoredFp8 out = empty_transposed(x, scaling);
    fp8_quantize(ctx, x, {}, out.matrix());
    return out;
  }
  [[nodiscard]] std::string refusal(StoredFp8& a, StoredFp8& b, Fp8Sums sums = Fp8Sums::exact) {
    Tensor c =
        filled_tensor(DType::f32, {a.values.view().shape()[0], b.values.view().shape()[0]}, 0);
    try {
      fp8_matmul(ctx, as_const(a.matrix()), as_const(b.matrix()), {}, sums, Accumulate::no,
                 c.view());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

/// Of tests/golden/make_fp8_groups.py: many magnitudes, with stretches of zeros.
Tensor golden_values(Dim rows, Dim columns) {
  Tensor x = filled_tensor(DType::f32, {rows, columns}, 0);
  float* const values = x.view().data<float>();
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rows * columns); ++i) {
    if (i / 300 % 5 == 2) continue;
    const auto bits = static_cast<std::uint32_t>(i * 2654435761U + 12345U);
    const auto exponent = static_cast<int>(i / 37 * 40503 / 16 % 13);
    const float mantissa = static_cast<float>(static_cast<std::int32_t>(bits >> 8) - (1 << 23));
    values[i] = std::ldexp(mantissa, exponent - 30);
  }
  return x;
}

std::uint64_t hash_of(CView view) {
  return name_hash({static_cast<const char*>(view.raw()), view.bytes()});
}

TEST_F(Fp8Groups, ValuesAndScalesAreThoseOfMlDtypes) {
  std::ifstream file(HYPERSLAB_GOLDEN "/fp8_groups.txt");
  Dim rows = 0;
  Dim columns = 0;
  std::string kind;
  std::string way;
  std::uint64_t values = 0;
  std::uint64_t scales = 0;
  int cases = 0;
  while (file >> std::dec >> rows >> columns >> kind >> way >> std::hex >> values >> scales) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + " " + kind + " " + way);
    const Tensor x = golden_values(rows, columns);
    const Fp8Scaling scaling = kind == "group" ? Fp8Scaling::group : Fp8Scaling::block;
    const StoredFp8 found =
        way == "straight" ? straight(x.view(), scaling) : transposed(x.view(), scaling);
    EXPECT_EQ(hash_of(found.values.view()), values);
    EXPECT_EQ(hash_of(found.scales.view()), scales);
    ++cases;
  }
  EXPECT_EQ(cases, 100);
}

TEST_F(Fp8Groups, OneCallGivesTheValuesOfTwo) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor(dtype, {201, 272}, 5);
    for (const Fp8Scaling scaling : kGroups) {
      StoredFp8 a = empty_straight(x.view(), scaling);
      StoredFp8 b = empty_transposed(x.view(), scaling);
      fp8_quantize(ctx, x.view(), a.matrix(), b.matrix());
      const StoredFp8 alone = straight(x.view(), scaling);
      const StoredFp8 turned = transposed(x.view(), scaling);
      EXPECT_EQ(hash_of(a.values.view()), hash_of(alone.values.view()));
      EXPECT_EQ(hash_of(a.scales.view()), hash_of(alone.scales.view()));
      EXPECT_EQ(hash_of(b.values.view()), hash_of(turned.values.view()));
      EXPECT_EQ(hash_of(b.scales.view()), hash_of(turned.scales.view()));
    }
  }
}

/// True if every value of the transpose equals that of the matrix.
bool has_the_same_values(const StoredFp8& a, const StoredFp8& b) {
  const auto* const values = a.values.view().data<std::uint8_t>();
  const auto* const turned = b.values.view().data<std::uint8_t>();
  const Dim M = a.values.view().shape()[0];
  const Dim K = a.values.view().shape()[1];
  for (Dim m = 0; m < M; ++m) {
    for (Dim k = 0; k < K; ++k) {
      if (values[m * K + k] != turned[k * M + m]) return false;
    }
  }
  return true;
}

TEST_F(Fp8Groups, ATransposeOfBlocksIsRoundedOnceAndOneOfGroupsAnew) {
  const Tensor x = random_tensor(DType::f32, {300, 144}, 6);
  EXPECT_TRUE(has_the_same_values(straight(x.view(), Fp8Scaling::block),
                                  transposed(x.view(), Fp8Scaling::block)));
  EXPECT_FALSE(has_the_same_values(straight(x.view(), Fp8Scaling::group),
                                   transposed(x.view(), Fp8Scaling::group)));
}

TEST_F(Fp8Groups, WhatIsNotFiniteReachesItsGroupAlone) {
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor x = filled_tensor(DType::f32, {256, 256}, 1);
    x.view().data<float>()[5 * 256 + 130] = static_cast<float>(value);
    const Tensor ones = filled_tensor(DType::f32, {16, 256}, 1);
    StoredFp8 right = straight(ones.view(), Fp8Scaling::group);
    for (const Fp8Scaling scaling : kGroups) {
      StoredFp8 left = straight(x.view(), scaling);
      Tensor c = filled_tensor(DType::f32, {256, 16}, 0);
      fp8_matmul(ctx, as_const(left.matrix()), as_const(right.matrix()), {}, Fp8Sums::exact,
                 Accumulate::no, c.view());
      const std::vector<double> sums = to_doubles(c.view());
      const std::size_t beside = scaling == Fp8Scaling::block ? 127 : 5;
      EXPECT_TRUE(std::isnan(sums[5 * 16]));
      EXPECT_TRUE(std::isnan(sums[beside * 16]));
      EXPECT_NEAR(sums[(beside + 1) * 16], 256, 1e-3);
      // The other group of the row is as it was.
      EXPECT_EQ(left.values.view().data<std::uint8_t>()[5 * 256], 0x7E);
    }
  }
}

double e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const double fraction = (bits & 7) / 8.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

double e5m2(std::uint8_t bits) {
  const int exponent = bits >> 2 & 31;
  const double fraction = (bits & 3) / 4.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

/// The elements that FP8 values and scales stand for, by the definitions in fp8.hpp.
std::vector<double> elements(const StoredFp8& stored) {
  const Dim M = stored.values.view().shape()[0];
  const Dim K = stored.values.view().shape()[1];
  const auto* const values = stored.values.view().data<std::uint8_t>();
  const auto* const scales = stored.scales.view().data<float>();
  std::vector<double> out;
  for (Dim m = 0; m < M; ++m) {
    for (Dim k = 0; k < K; ++k) {
      const Dim at = stored.scaling == Fp8Scaling::group
                         ? k / 128 * M + m
                         : m / 128 * stored.scales.view().shape()[1] + k / 128;
      const std::uint8_t bits = values[m * K + k];
      out.push_back((stored.format == Fp8Format::e4m3 ? e4m3(bits) : e5m2(bits)) * scales[at]);
    }
  }
  return out;
}

struct Pair {
  Fp8Scaling a, b;
};

TEST_F(Fp8Groups, ProductsAreThoseOfTheRoundedOperands) {
  const Dim M = 144;
  const Dim N = 208;
  const Dim K = 304;
  const Tensor x = random_tensor(DType::f32, {M, K}, 1);
  const Tensor w = random_tensor(DType::f32, {N, K}, 2);
  const Tensor bias = random_tensor(DType::f32, {N}, 3);
  const Tensor before = random_tensor(DType::f32, {M, N}, 4);
  for (const auto& [left, right] :
       {Pair{Fp8Scaling::group, Fp8Scaling::group}, Pair{Fp8Scaling::group, Fp8Scaling::block},
        Pair{Fp8Scaling::block, Fp8Scaling::group}}) {
    for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
      StoredFp8 a = straight(x.view(), left, format);
      StoredFp8 b = straight(w.view(), right);
      const std::vector<double> rows = elements(a);
      const std::vector<double> columns = elements(b);
      for (const bool adds : {false, true}) {
        Tensor c = filled_tensor(DType::f32, {M, N}, 0);
        copy(ctx, before.view(), c.view());
        fp8_matmul(ctx, as_const(a.matrix()), as_const(b.matrix()), adds ? CView() : bias.view(),
                   Fp8Sums::exact, adds ? Accumulate::yes : Accumulate::no, c.view());
        for (Dim m = 0; m < M; ++m) {
          for (Dim n = 0; n < N; ++n) {
            double sum =
                adds ? before.view().data<float>()[m * N + n] : bias.view().data<float>()[n];
            for (Dim k = 0; k < K; ++k) {
              sum += rows[static_cast<std::size_t>(m * K + k)] *
                     columns[static_cast<std::size_t>(n * K + k)];
            }
            ASSERT_NEAR(c.view().data<float>()[m * N + n], sum, 1e-4) << m << ", " << n;
          }
        }
      }
    }
  }
}

TEST_F(Fp8Groups, PairsThatNoGpuMultipliesAreRefusedByName) {
  const Tensor x = random_tensor(DType::f32, {32, 256}, 1);
  StoredFp8 blocks = straight(x.view(), Fp8Scaling::block);
  StoredFp8 groups = straight(x.view(), Fp8Scaling::group);
  StoredFp8 rows = straight(x.view(), Fp8Scaling::row);
  EXPECT_EQ(refusal(groups, groups), "");
  EXPECT_NE(refusal(blocks, blocks).find("both operands have scales of blocks"), std::string::npos);
  for (StoredFp8* const other : {&blocks, &groups}) {
    EXPECT_NE(refusal(rows, *other).find("both operands are scaled alike"), std::string::npos);
    EXPECT_NE(refusal(*other, rows).find("both operands are scaled alike"), std::string::npos);
  }
  EXPECT_NE(refusal(groups, blocks, Fp8Sums::fast).find("with groups all sums are exact"),
            std::string::npos);
}

TEST_F(Fp8Groups, ShapesThatDoNotFitAreRefusedByName) {
  const auto refused = [&](const Shape& shape, const Fp8Matrix& a, const Fp8Matrix& b) {
    const Tensor x = random_tensor(DType::f32, shape, 1);
    try {
      fp8_quantize(ctx, x.view(), a, b);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto stored = [](Fp8Scaling scaling, Dim rows, Dim columns) {
    return stored_fp8(Fp8Format::e4m3, scaling, rows, columns);
  };
  for (const Fp8Scaling scaling : kGroups) {
    StoredFp8 odd_columns = stored(scaling, 32, 127);
    EXPECT_THAT(refused({32, 127}, odd_columns.matrix(), {}),
                testing::HasSubstr("sums of a multiple of 16 products"));
    StoredFp8 odd_rows = stored(scaling, 127, 128);
    EXPECT_THAT(refused({127, 128}, odd_rows.matrix(), {}),
                testing::HasSubstr("fp8_quantize straight values"));
    StoredFp8 odd_outputs = stored(scaling, 24, 32);
    EXPECT_THAT(refused({32, 24}, {}, odd_outputs.matrix()),
                testing::HasSubstr("a multiple of 16 rows, of groups of 128"));
    StoredFp8 groups = stored(scaling, 32, 128);
    StoredFp8 rows = stored(Fp8Scaling::row, 128, 32);
    EXPECT_THAT(refused({32, 128}, groups.matrix(), rows.matrix()),
                testing::HasSubstr("one format and one scaling"));
  }
}

}  // namespace
}  // namespace hyperslab::ops
