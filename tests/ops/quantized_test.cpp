// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/quantized.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "quantized_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Quantized : public OpsTest {
 protected:
  StoredMatrix quantized(const GroupedFormat& format, const Tensor& weight) {
    StoredMatrix out = stored_matrix(format, weight.view().shape()[0], weight.view().shape()[1]);
    quantize(ctx, weight.view(), out.matrix);
    return out;
  }
  Tensor widened(const StoredMatrix& stored, DType dtype = DType::f32) {
    Tensor out = poisoned(dtype, stored.matrix.shape);
    dequantize(ctx, stored.view(), out.view());
    return out;
  }
};

std::string label(const GroupedFormat& format) {
  return std::string(name_of(format.format)) + " in groups of " + std::to_string(format.group);
}

/// The most that rounding to the nearest code moves a value, in units of the scale, plus what the
/// rounding of the scale itself does to the largest value, relative to it.
double half_step(WeightFormat format) {
  if (format != WeightFormat::nf4) return 0.5;
  double widest = 0;
  for (std::size_t i = 1; i < kNormalFloat4.size(); ++i) {
    widest = std::max<double>(widest, kNormalFloat4[i] - kNormalFloat4[i - 1]);
  }
  return widest / 2;
}
double scale_rounding(WeightFormat format, double amax, double block_amax) {
  switch (format) {
    case WeightFormat::int8: return 1e-6 * amax;
    case WeightFormat::int4: return 0x1p-11 * amax + 7 * 0x1p-25;
    case WeightFormat::nf4: return block_amax / 255 / 2;
  }
  return 0;
}

TEST_F(Quantized, ValuesMoveAtMostHalfAStep) {
  for (const GroupedFormat& format : kGroupedFormats) {
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      SCOPED_TRACE(label(format));
      const Dim K = 192;
      const Tensor weight =
          random_tensor(DType::f32, {97, K}, seed, std::pow(10.0, static_cast<double>(seed) - 2));
      const StoredMatrix stored = quantized(format, weight);
      const auto before = to_doubles(weight.view());
      const auto after = to_doubles(widened(stored).view());
      const double amax = std::abs(*std::ranges::max_element(
          before, [](double a, double b) { return std::abs(a) < std::abs(b); }));
      const auto group = static_cast<std::size_t>(stored.matrix.group);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const double bound = half_step(format.format) * stored.scale(i / group) * (1 + 1e-6) +
                             scale_rounding(format.format, std::abs(before[i]), amax);
        ASSERT_LE(std::abs(after[i] - before[i]), bound) << i << ": " << before[i];
      }
    }
  }
}

TEST_F(Quantized, RepresentableValuesStay) {
  // Scales that are powers of two, and in every group a value of the largest magnitude.
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(label(format));
    const Dim K = 128;
    StoredMatrix source = stored_matrix(format, 6, K);
    const bool is_int8 = format.format == WeightFormat::int8;
    auto codes = source.codes.view().span<std::uint8_t>();
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (is_int8) {
        codes[i] = static_cast<std::uint8_t>(i % 128 == 5 ? 127 : static_cast<int>(i % 255) - 127);
      } else {
        const std::size_t low = format.format == WeightFormat::int4 ? 1 + i % 15 : i % 16;
        codes[i] = static_cast<std::uint8_t>(low | (15U << 4U));
      }
    }
    if (format.format == WeightFormat::nf4) {
      std::ranges::fill(source.scales.view().span<std::uint8_t>(), std::uint8_t{255});
      source.block_scales.view().data<float>()[0] = 0.25F;
    } else {
      source.scales =
          filled_tensor(source.scales.view().dtype(), source.scales.view().shape(), 0.25);
      source.matrix.scales = source.scales.view();
    }
    const Tensor weight = widened(source);

    const StoredMatrix stored = quantized(format, weight);

    EXPECT_TRUE(same_bits(stored.codes.view(), source.codes.view()));
    EXPECT_TRUE(same_bits(stored.scales.view(), source.scales.view()));
    EXPECT_TRUE(same_bits(widened(stored).view(), weight.view()));
  }
}

TEST_F(Quantized, ZerosAndUnrepresentableGroups) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(label(format));
    Tensor weight = filled_tensor(DType::f32, {2, 64}, 0);
    const auto zeros = to_doubles(widened(quantized(format, weight)).view());
    EXPECT_EQ(zeros, std::vector<double>(128, 0.0));

    for (const float value : {infinity, -infinity, nan}) {
      weight.view().data<float>()[64] = value;
      const auto found = to_doubles(widened(quantized(format, weight)).view());
      const bool shares_scale = format.format == WeightFormat::nf4;
      EXPECT_EQ(std::isnan(found[0]), shares_scale) << value;
      EXPECT_TRUE(std::isnan(found[64])) << value;
      EXPECT_TRUE(std::isnan(found[65])) << value;
    }
  }
}

TEST_F(Quantized, AHugeElementTakesTheSmallOnesOfItsGroupAlone) {
  for (const GroupedFormat& format :
       {GroupedFormat{WeightFormat::int8, 0}, GroupedFormat{WeightFormat::int4, 32}}) {
    SCOPED_TRACE(label(format));
    Tensor weight = filled_tensor(DType::f32, {2, 64}, 0.5);
    weight.view().data<float>()[3] = -10000;

    const StoredMatrix stored = quantized(format, weight);
    const auto found = to_doubles(widened(stored).view());

    EXPECT_NEAR(found[3], -10000, 5);
    EXPECT_EQ(found[0], 0);
    EXPECT_EQ(found[31], 0);
    EXPECT_NEAR(found[64], 0.5, 1e-3);
    EXPECT_NEAR(found[32], format.group == 32 ? 0.5 : 0.0, 1e-3);
  }
}

TEST_F(Quantized, CodesArePackedLowNibbleFirst) {
  const Tensor weight = tensor_of(DType::f32, {2, 4}, {7, -3, 0, 2, -14, 4, 14, -2});
  const StoredMatrix four = quantized({WeightFormat::int4, 4}, weight);
  EXPECT_EQ(to_doubles(four.codes.view()), (std::vector<double>{0x5F, 0xA8, 0xA1, 0x7F}));
  EXPECT_EQ(to_doubles(four.scales.view()), (std::vector<double>{1, 2}));

  const Tensor bytes = tensor_of(DType::f32, {2, 2}, {127, -3, -254, 2});
  const StoredMatrix eight = quantized({WeightFormat::int8, 0}, bytes);
  EXPECT_EQ(to_doubles(eight.codes.view()), (std::vector<double>{127, 253, 129, 1}));
  EXPECT_EQ(to_doubles(eight.scales.view()), (std::vector<double>{1, 2}));

  Tensor row = filled_tensor(DType::f32, {1, 64}, 0);
  row.view().data<float>()[0] = -2;
  row.view().data<float>()[1] = 2;
  row.view().data<float>()[3] = 1.13F;
  const StoredMatrix normal = quantized({WeightFormat::nf4, 64}, row);
  EXPECT_EQ(normal.codes.view().data<std::uint8_t>()[0], 0xF0);
  EXPECT_EQ(normal.codes.view().data<std::uint8_t>()[1], 0xD7);
  EXPECT_EQ(normal.codes.view().data<std::uint8_t>()[31], 0x77);
  EXPECT_EQ(to_doubles(normal.scales.view()), (std::vector<double>{255}));
  EXPECT_EQ(normal.block_scales.view().data<float>()[0], 2.0F / 255.0F);
}

TEST_F(Quantized, TiesGoToTheEvenCode) {
  const Tensor weight = tensor_of(DType::f32, {1, 8}, {127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5});
  const StoredMatrix stored = quantized({WeightFormat::int8, 0}, weight);
  expect_values(widened(stored).view(), {127, 0, 2, 2, 0, -2, -2, 4}, 0);
}

/// The nearest of the table by exact distances, the lower one of two.
std::size_t nearest_by_search(double value) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < kNormalFloat4.size(); ++i) {
    if (std::abs(value - kNormalFloat4[i]) < std::abs(value - kNormalFloat4[best])) best = i;
  }
  return best;
}

TEST_F(Quantized, NormalFloatsAreTheNearestOfTheTable) {
  // A scale of one, then random values, and every middle of two levels with its neighbors.
  std::vector<double> values = {1.0};
  for (std::size_t i = 1; i < kNormalFloat4.size(); ++i) {
    const auto middle = static_cast<float>(
        (static_cast<double>(kNormalFloat4[i - 1]) + static_cast<double>(kNormalFloat4[i])) / 2);
    values.push_back(middle);
    values.push_back(std::nextafter(middle, 2.0F));
    values.push_back(std::nextafter(middle, -2.0F));
  }
  values.resize(64, 0.0);
  const auto random = to_doubles(random_tensor(DType::f32, {64 * 255}, 7, 0.4).view());
  for (std::size_t i = 0; i < random.size(); ++i) {
    values.push_back(i % 64 == 0 ? -1.0 : std::clamp(random[i], -1.0, 1.0));
  }
  // One block whose largest scale is 1: the scale of each group is 255 * (1 / 255) in f32.
  const Tensor weight = tensor_of(DType::f32, {256, 64}, values);
  const StoredMatrix stored = quantized({WeightFormat::nf4, 64}, weight);
  ASSERT_EQ(stored.scale(0), 1.0);
  const auto* codes = stored.codes.view().data<std::uint8_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const unsigned code = i % 2 == 0 ? codes[i / 2] & 15U : codes[i / 2] >> 4U;
    ASSERT_EQ(code, nearest_by_search(values[i])) << i << ": " << values[i];
  }
}

TEST_F(Quantized, ScalesOfNormalFloatsShareABlock) {
  // 300 groups: a block of 256 and one of 44.
  const Tensor weight = random_tensor(DType::f32, {300, 64}, 3);
  const StoredMatrix stored = quantized({WeightFormat::nf4, 64}, weight);
  const auto values = to_doubles(weight.view());
  const auto* blocks = stored.block_scales.view().data<float>();
  for (std::size_t block = 0; block < 2; ++block) {
    float most = 0;
    const std::size_t end = std::min<std::size_t>(values.size(), (block + 1) * 256 * 64);
    for (std::size_t i = block * 256 * 64; i < end; ++i) {
      most = std::max(most, static_cast<float>(std::abs(values[i])));
    }
    EXPECT_EQ(blocks[block], most / 255.0F) << block;
  }
}

TEST_F(Quantized, FakeQuantizationIsTheRoundTrip) {
  for (const GroupedFormat& format : kGroupedFormats) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(label(format) + " " + std::string(name_of(dtype)));
      Tensor weight = random_tensor(dtype, {67, 320}, 5);
      const Tensor expected = widened(quantized(format, weight), dtype);
      Tensor out = poisoned(dtype, {67, 320});
      const Dim group = format.group == 0 ? 320 : format.group;

      fake_quantize(ctx, format.format, group, weight.view(), out.view());
      EXPECT_TRUE(same_bits(out.view(), expected.view()));

      fake_quantize(ctx, format.format, group, weight.view(), weight.view());
      EXPECT_TRUE(same_bits(weight.view(), expected.view()));
    }
  }
}

TEST_F(Quantized, EveryDtypeOfTheSameValuesHasTheSameBits) {
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(label(format));
    const Tensor half = random_tensor(DType::bf16, {33, 192}, 6);
    const StoredMatrix expected = quantized(format, half);
    for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
      ASSERT_EQ(to_doubles(converted(half.view(), dtype).view()), to_doubles(half.view()));
      const StoredMatrix found = quantized(format, converted(half.view(), dtype));
      EXPECT_TRUE(same_bits(found.codes.view(), expected.codes.view())) << name_of(dtype);
      EXPECT_TRUE(same_bits(found.scales.view(), expected.scales.view())) << name_of(dtype);
    }
  }
}

TEST_F(Quantized, ThreadsDoNotChangeBits) {
  const Tensor weight = random_tensor(DType::f32, {131, 640}, 8);
  const int threads = omp_get_max_threads();
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(label(format));
    std::vector<StoredMatrix> found;
    for (const int count : {1, 3}) {
      omp_set_num_threads(count);
      Context some(Device::cpu, 0);
      found.push_back(stored_matrix(format, 131, 640));
      quantize(some, weight.view(), found.back().matrix);
      ASSERT_EQ(some.threads(), count);
    }
    EXPECT_TRUE(same_bits(found[0].codes.view(), found[1].codes.view()));
    EXPECT_TRUE(same_bits(found[0].scales.view(), found[1].scales.view()));
    EXPECT_TRUE(same_bits(found[0].block_scales.view(), found[1].block_scales.view()));
  }
  omp_set_num_threads(threads);
}

TEST_F(Quantized, EmptyMatricesAreLegal) {
  for (const GroupedFormat& format : kGroupedFormats) {
    SCOPED_TRACE(label(format));
    const Tensor none = filled_tensor(DType::f32, {0, 64}, 0);
    EXPECT_EQ(widened(quantized(format, none)).view().numel(), 0);
  }
  const Tensor rows = filled_tensor(DType::f32, {3, 0}, 0);
  const StoredMatrix stored = quantized({WeightFormat::int8, 0}, rows);
  EXPECT_EQ(to_doubles(stored.scales.view()), (std::vector<double>{0, 0, 0}));
}

TEST_F(Quantized, BytesAreThoseOfTheArrays) {
  for (const GroupedFormat& format : kGroupedFormats) {
    const StoredMatrix stored = stored_matrix(format, 300, 192);
    const QuantizedBytes bytes =
        quantized_bytes(format.format, stored.matrix.group, stored.matrix.shape);
    EXPECT_EQ(bytes.codes, stored.codes.view().bytes()) << label(format);
    EXPECT_EQ(bytes.scales, stored.scales.view().bytes()) << label(format);
    EXPECT_EQ(bytes.block_scales, stored.block_scales.view().bytes()) << label(format);
  }
}

TEST_F(Quantized, WrongOperandsAreNamed) {
  const Tensor weight = filled_tensor(DType::f32, {4, 64}, 1);
  Tensor out = filled_tensor(DType::f32, {4, 64}, 1);
  const auto refuse = [&](const std::string& argument, const QuantizedMatrix& matrix) {
    expect_error_naming(argument, [&] { quantize(ctx, weight.view(), matrix); });
  };
  for (const GroupedFormat& format : kGroupedFormats) {
    StoredMatrix stored = stored_matrix(format, 4, 64);
    QuantizedMatrix matrix = stored.matrix;
    matrix.codes = out.view();
    refuse("quantize out codes", matrix);
    matrix = stored.matrix;
    matrix.scales = out.view();
    refuse("quantize out scales", matrix);
    expect_error_naming("dequantize out", [&] {
      dequantize(ctx, stored.view(), out.view().reshaped({8, 32}));
    });
  }
  StoredMatrix normal = stored_matrix({WeightFormat::nf4, 64}, 4, 64);
  normal.matrix.block_scales = {};
  refuse("quantize out block scales", normal.matrix);
  StoredMatrix wide = stored_matrix({WeightFormat::int8, 0}, 4, 128);
  refuse("quantize weight", wide.matrix);

  const auto refuse_group = [&](const std::string& rule, WeightFormat format, Dim group) {
    expect_error_naming(rule,
                        [&] { fake_quantize(ctx, format, group, weight.view(), out.view()); });
  };
  refuse_group("int8 has one scale a row", WeightFormat::int8, 32);
  refuse_group("nf4 has groups of 64", WeightFormat::nf4, 32);
  refuse_group("must be even and divide the row", WeightFormat::int4, 48);
  refuse_group("must be even and divide the row", WeightFormat::int4, 1);
  refuse_group("must be even and divide the row", WeightFormat::int4, 0);
  Tensor narrow = filled_tensor(DType::f32, {4, 32}, 1);
  expect_error_naming("fake_quantize out", [&] {
    fake_quantize(ctx, WeightFormat::int4, 32, weight.view(), narrow.view());
  });
  const Tensor integers = int_tensor({1, 2}, {1, 2});
  StoredMatrix two = stored_matrix({WeightFormat::int8, 0}, 1, 2);
  expect_error_naming("quantize: CPU ranks compute in f32 or f64",
                      [&] { quantize(ctx, integers.view(), two.matrix); });
}

}  // namespace
}  // namespace hyperslab::ops
