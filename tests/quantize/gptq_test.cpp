// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/quantize/gptq.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hyperslab/core/error.hpp"
#include "support/tensors.hpp"

namespace hyperslab::quantize {
namespace {

using namespace hyperslab::test;

/// Memory for a quantized matrix.
struct Quantized {
  Quantized(ops::WeightFormat format, const Shape& shape, Dim group)
      : int8(format == ops::WeightFormat::int8),
        codes(filled_tensor(DType::u8, {shape[0], int8 ? shape[1] : shape[1] / 2}, 0)),
        scales(Device::cpu, int8 ? DType::f32 : DType::f16,
               int8 ? Shape{shape[0]} : Shape{shape[0], shape[1] / group}),
        matrix{format, int8 ? shape[1] : group, shape, codes.view(), scales.view()} {}
  bool int8;
  Tensor codes;
  Tensor scales;
  ops::QuantizedMatrix matrix;
};

std::vector<double> widened(const ops::QuantizedMatrix& matrix) {
  Context ctx(Device::cpu);
  Tensor out(Device::cpu, DType::f32, matrix.shape);
  ops::dequantize(ctx, ops::as_const(matrix), out.view());
  return to_doubles(out.view());
}

std::vector<double> compensated(const std::vector<double>& products, const Tensor& weight,
                                Quantized& out) {
  Tensor used = tensor_of(DType::f32, weight.view().shape(), to_doubles(weight.view()));
  round_compensating(ErrorModel(products, weight.view().shape()[1]), used.view(), out.matrix);
  return widened(out.matrix);
}

std::vector<double> rounded(const Tensor& weight, Quantized& out) {
  Context ctx(Device::cpu);
  ops::quantize(ctx, weight.view(), out.matrix);
  return widened(out.matrix);
}

/// X^T X of (N, K) inputs.
std::vector<double> products_of(const Tensor& inputs) {
  const auto [N, K] = inputs.view().dims<2>("inputs");
  const std::vector<double> x = to_doubles(inputs.view());
  std::vector<double> out(static_cast<std::size_t>(K * K));
  for (Dim n = 0; n < N; ++n) {
    for (Dim i = 0; i < K; ++i) {
      for (Dim j = 0; j < K; ++j) out[i * K + j] += x[n * K + i] * x[n * K + j];
    }
  }
  return out;
}

/// Squares of what the layer's outputs change by.
double output_error(const Tensor& inputs, const Tensor& weight, const std::vector<double>& to) {
  const auto [N, K] = inputs.view().dims<2>("inputs");
  const std::vector<double> x = to_doubles(inputs.view());
  const std::vector<double> w = to_doubles(weight.view());
  double sum = 0;
  for (Dim n = 0; n < N; ++n) {
    for (Dim row = 0; row < weight.view().shape()[0]; ++row) {
      double change = 0;
      for (Dim i = 0; i < K; ++i) change += x[n * K + i] * (to[row * K + i] - w[row * K + i]);
      sum += change * change;
    }
  }
  return sum;
}

/// Inputs of which each resembles the one before.
Tensor correlated_inputs(Dim N, Dim K) {
  std::vector<double> x = to_doubles(random_tensor(DType::f64, {N, K}, 3).view());
  for (Dim n = 0; n < N; ++n) {
    for (Dim i = 1; i < K; ++i) x[n * K + i] = 0.9 * x[n * K + i - 1] + 0.4 * x[n * K + i];
  }
  return tensor_of(DType::f64, {N, K}, x);
}

TEST(ErrorModel, FactorsTheInverseOfTheProducts) {
  constexpr Dim kColumns = 6;
  const Tensor inputs = correlated_inputs(40, kColumns);
  std::vector<double> products = products_of(inputs);
  const ErrorModel errors(products, kColumns, 0);
  std::vector<double> inverse(kColumns * kColumns);
  for (Dim k = 0; k < kColumns; ++k) {
    for (Dim i = k; i < kColumns; ++i) {
      for (Dim j = k; j < kColumns; ++j) {
        inverse[i * kColumns + j] += double{errors.row(k)[i - k]} * errors.row(k)[j - k];
      }
    }
  }
  for (Dim i = 0; i < kColumns; ++i) {
    for (Dim j = 0; j < kColumns; ++j) {
      double one = 0;
      for (Dim k = 0; k < kColumns; ++k)
        one += products[i * kColumns + k] * inverse[k * kColumns + j];
      EXPECT_NEAR(one, i == j ? 1 : 0, 1e-5) << i << ", " << j;
    }
  }
}

TEST(ErrorModel, RefusesInputsThatAreNotFinite) {
  std::vector<double> products = {1, 0, 0, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(ErrorModel(products, 2), Error);
}

/// Nothing can be made up for by inputs that have nothing to do with each other.
TEST(Compensation, OfIndependentInputsIsRoundingToTheNearest) {
  constexpr Dim kColumns = 64;
  std::vector<double> identity(kColumns * kColumns);
  for (Dim i = 0; i < kColumns; ++i) identity[i * kColumns + i] = 1;
  const Tensor weight = random_tensor(DType::f32, {11, kColumns}, 1);
  for (const auto format : {ops::WeightFormat::int8, ops::WeightFormat::int4}) {
    Quantized nearest(format, {11, kColumns}, 16);
    Quantized found(format, {11, kColumns}, 16);

    EXPECT_EQ(compensated(identity, weight, found), rounded(weight, nearest));
    EXPECT_EQ(to_doubles(found.codes.view()), to_doubles(nearest.codes.view()));
  }
}

TEST(Compensation, OfRelatedInputsLessensTheErrorOfTheOutputs) {
  constexpr Dim kColumns = 128;
  const Tensor inputs = correlated_inputs(512, kColumns);
  const std::vector<double> products = products_of(inputs);
  const Tensor weight = random_tensor(DType::f32, {24, kColumns}, 2);
  for (const Dim group : {32, 128}) {
    Quantized nearest(ops::WeightFormat::int4, {24, kColumns}, group);
    Quantized found(ops::WeightFormat::int4, {24, kColumns}, group);
    const double before = output_error(inputs, weight, rounded(weight, nearest));
    const double after = output_error(inputs, weight, compensated(products, weight, found));

    EXPECT_LT(after, 0.5 * before) << "groups of " << group;
  }
}

TEST(Compensation, GivesNothingToInputsThatAreAlwaysZero) {
  constexpr Dim kColumns = 4;
  std::vector<double> products(kColumns * kColumns);
  for (Dim i = 0; i < kColumns; ++i) products[i * kColumns + i] = i == 2 ? 0 : 3;
  const Tensor weight = filled_tensor(DType::f32, {1, kColumns}, 0.5);
  Quantized out(ops::WeightFormat::int4, {1, kColumns}, kColumns);

  const std::vector<double> found = compensated(products, weight, out);

  EXPECT_EQ(found[2], 0);
  EXPECT_NEAR(found[3], 0.5, 1e-3);
}

}  // namespace
}  // namespace hyperslab::quantize
