// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"

#include "ops_test.hpp"
#include "support/hundredths.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Elementwise : public OpsTest {};

TEST_F(Elementwise, AddsAlsoInPlace) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Tensor a = random_tensor(dtype, {3, 17}, 1);
    Tensor b = random_tensor(dtype, {3, 17}, 2);
    Tensor y = poisoned(dtype, {3, 17});
    auto expected = to_doubles(a.view());
    const auto right = to_doubles(b.view());
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += right[i];

    add(ctx, a.view(), b.view(), y.view());
    Tensor over_a = a.clone();
    add(ctx, over_a.view(), b.view(), over_a.view());
    add(ctx, a.view(), b.view(), b.view());

    expect_values(y.view(), expected);
    EXPECT_TRUE(same_bits(over_a.view(), y.view()));
    EXPECT_TRUE(same_bits(b.view(), y.view()));
  }
}

TEST_F(Elementwise, ScalesIntoItsOwnDtypeAndIntoF32) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Tensor x = tensor_of(dtype, {3}, {1.5, -4, 0});
    for (const DType out : {dtype, dtype == DType::bf16 ? DType::f32 : dtype}) {
      Tensor y = poisoned(out, {3});

      scale(ctx, 0.5F, x.view(), y.view());

      expect_values(y.view(), {0.75, -2, 0}, 0);
    }
    scale(ctx, -2, x.view(), x.view());
    expect_values(x.view(), {-3, 8, 0}, 0);
  }
  Tensor narrow = filled_tensor(DType::bf16, {3}, 0);
  const Tensor wide = filled_tensor(DType::f32, {3}, 0);
  expect_error_naming("scale y", [&] { scale(ctx, 2, wide.view(), narrow.view()); });
}

TEST_F(Elementwise, CapsSoftlyWithTheSlopeOfItsCurve) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = random_tensor(dtype, {3, 17}, 1);
    const Tensor dy = random_tensor(dtype, {3, 17}, 2);
    Tensor y = poisoned(dtype, {3, 17});
    Tensor dx = dy.clone();
    softcap(ctx, 0.75F, x.view(), y.view());
    softcap_backward(ctx, 0.75F, y.view(), dx.view(), dx.view());
    std::vector<double> expected;
    std::vector<double> slopes;
    const auto gradient = to_doubles(dy.view());
    for (const double value : to_doubles(x.view())) {
      expected.push_back(0.75 * std::tanh(value / 0.75));
      slopes.push_back(gradient[slopes.size()] / std::pow(std::cosh(value / 0.75), 2));
    }
    expect_values(y.view(), expected);
    expect_values(dx.view(), slopes);
  }
  Tensor x = filled_tensor(DType::f32, {3}, 1);
  expect_error_naming("softcap cap", [&] { softcap(ctx, 0, x.view(), x.view()); });
}

TEST_F(Elementwise, FillsAnyDtypeWithZeroAndFloatsWithAnything) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                            DType::u16, DType::u8}) {
    Tensor y = filled_tensor(dtype, {5, 7}, 3);
    fill(ctx, 0, y.view());
    expect_values(y.view(), std::vector<double>(35, 0.0), 0);
  }
  Tensor y = poisoned(DType::f32, {9001});
  fill(ctx, -2.5F, y.view());
  expect_values(y.view(), std::vector<double>(9001, -2.5), 0);
  Tensor whole = filled_tensor(DType::i32, {3}, 0);
  expect_error_naming("fill y", [&] { fill(ctx, 1, whole.view()); });
}

TEST_F(Elementwise, CastsBetweenAllFloatingTypesToNearestEven) {
  // 1 + 2^-8 and 1 + 3 * 2^-8 lie between two bf16 numbers each: ties go to the even one.
  const std::vector<double> values = {1 + 0x1p-8, 1 + 3 * 0x1p-8, -0.333333343267440796, 65504};
  const std::vector<double> in_bf16 = {1, 1 + 4 * 0x1p-8, -0.333984375, 65536};
  const std::vector<double> in_f16 = {1 + 0x1p-8, 1 + 3 * 0x1p-8, -0.333251953125, 65504};
  for (const DType from : {DType::f64, DType::f32}) {
    const Tensor x = tensor_of(from, {4}, values);
    Tensor brain = poisoned(DType::bf16, {4});
    Tensor half = poisoned(DType::f16, {4});
    Tensor back = poisoned(DType::f64, {4});

    cast(ctx, x.view(), brain.view());
    cast(ctx, x.view(), half.view());
    expect_values(brain.view(), in_bf16, 0);
    expect_values(half.view(), in_f16, 0);

    cast(ctx, half.view(), back.view());
    expect_values(back.view(), in_f16, 0);
    cast(ctx, x.view(), back.view());
    expect_values(back.view(), values, 0);
  }
}

TEST_F(Elementwise, RootMeanSquare) {
  Tensor out = poisoned(DType::f32, {1});
  root_mean_square(ctx, tensor_of(DType::f32, {1, 2}, {3, -4}).view(), out.view());
  expect_values(out.view(), {std::sqrt(12.5)});

  const Tensor large = filled_tensor(DType::f64, {200001}, -7);
  root_mean_square(ctx, large.view(), out.view());
  expect_values(out.view(), {7});

  const Tensor none(Device::cpu, DType::f32, {0});
  root_mean_square(ctx, none.view(), out.view());
  expect_values(out.view(), {0});
}

TEST_F(Elementwise, WrongOperandsAreNamed) {
  Tensor a = filled_tensor(DType::f32, {2}, 0);
  Tensor b = filled_tensor(DType::f32, {3}, 0);
  Tensor whole = filled_tensor(DType::i32, {2}, 0);
  expect_error_naming("add b", [&] { add(ctx, a.view(), b.view(), a.view()); });
  expect_error_naming("add y", [&] { add(ctx, a.view(), a.view(), whole.view()); });
  expect_error_naming("cast y", [&] { cast(ctx, a.view(), b.view()); });
  expect_error_naming("cast x", [&] { cast(ctx, whole.view(), a.view()); });
  expect_error_naming("root_mean_square out", [&] { root_mean_square(ctx, a.view(), b.view()); });
}

}  // namespace
}  // namespace hyperslab::ops
