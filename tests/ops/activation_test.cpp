// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/activation.hpp"

#include "finite_difference.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Activation kPlain[] = {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                 Activation::silu, Activation::relu_squared};
constexpr Activation kGated[] = {Activation::swiglu, Activation::geglu, Activation::geglu_tanh};

class ActivationOps : public OpsTest {};

TEST_F(ActivationOps, ForwardByHand) {
  const Tensor x = tensor_of(DType::f32, {4}, {-2, 0, 1, 3});
  Tensor y = poisoned(DType::f32, {4});
  const auto expect = [&](Activation activation, const std::vector<double>& expected) {
    activation_forward(ctx, activation, x.view(), y.view());
    expect_values(y.view(), expected, 2e-6);
  };
  expect(Activation::gelu, {-0.0455002639, 0, 0.8413447461, 2.9959503206});
  expect(Activation::gelu_tanh, {-0.0454023059, 0, 0.8411919906, 2.9963625801});
  expect(Activation::relu, {0, 0, 1, 3});
  expect(Activation::silu, {-0.2384058440, 0, 0.7310585786, 2.8577223804});
  expect(Activation::relu_squared, {0, 0, 1, 9});
}

TEST_F(ActivationOps, GatedForwardByHand) {
  const Tensor gate_up = tensor_of(DType::f32, {2, 4}, {1, -2, 5, 7, 0, 3, 2, -1});
  Tensor y = poisoned(DType::f32, {2, 2});

  gated_forward(ctx, Activation::swiglu, gate_up.view(), y.view());
  expect_values(y.view(), {5 * 0.7310585786, 7 * -0.2384058440, 0, -2.8577223804}, 4e-6);

  gated_forward(ctx, Activation::geglu, gate_up.view(), y.view());
  expect_values(y.view(), {5 * 0.8413447461, 7 * -0.0455002639, 0, -2.9959503206}, 4e-6);
}

TEST_F(ActivationOps, GradientsMatchDifferences) {
  for (const Activation activation : kPlain) {
    Tensor x = random_tensor(DType::f64, {5, 7}, 11);
    const Tensor dy = random_tensor(DType::f64, {5, 7}, 12);
    Tensor y = poisoned(DType::f64, {5, 7});
    Tensor dx = poisoned(DType::f64, {5, 7});
    // Kinks of relu: keep away from zero.
    for (double& v : x.view().span<double>()) v += v < 0 ? -0.1 : 0.1;

    activation_backward(ctx, activation, x.view(), dy.view(), dx.view());

    expect_gradient("dx " + std::to_string(static_cast<int>(activation)), x.view(), dx.view(), [&] {
      activation_forward(ctx, activation, x.view(), y.view());
      return inner_product(dy.view(), y.view());
    });
  }
}

TEST_F(ActivationOps, GatedGradientsMatchDifferences) {
  for (const Activation activation : kGated) {
    Tensor gate_up = random_tensor(DType::f64, {3, 2, 10}, 11);
    const Tensor dy = random_tensor(DType::f64, {3, 2, 5}, 12);
    Tensor y = poisoned(DType::f64, {3, 2, 5});
    Tensor dgate_up = poisoned(DType::f64, {3, 2, 10});

    gated_backward(ctx, activation, gate_up.view(), dy.view(), dgate_up.view());

    expect_gradient("dgate_up", gate_up.view(), dgate_up.view(), [&] {
      gated_forward(ctx, activation, gate_up.view(), y.view());
      return inner_product(dy.view(), y.view());
    });
    gated_backward(ctx, activation, gate_up.view(), dy.view(), gate_up.view());
    EXPECT_TRUE(same_bits(gate_up.view(), dgate_up.view())) << "in place";
  }
}

/// 20,000 points from -12 to 12, the range in which anything happens.
Tensor sweep() {
  std::vector<double> values(20001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = -12 + 24e-4 * 0.5 * double(i);
  return tensor_of(DType::f32, {static_cast<Dim>(values.size())}, values);
}

TEST_F(ActivationOps, FloatIsWithinAMillionthOfTheOracleElementByElement) {
  const Tensor x = sweep();
  const Tensor x64 = converted(x.view(), DType::f64);
  const Tensor one = filled_tensor(DType::f32, x.view().shape(), 1);
  const Tensor one64 = filled_tensor(DType::f64, x.view().shape(), 1);
  for (const Activation activation : kPlain) {
    Tensor y = poisoned(DType::f32, x.view().shape());
    Tensor y64 = poisoned(DType::f64, x.view().shape());
    Tensor dx = poisoned(DType::f32, x.view().shape());
    Tensor dx64 = poisoned(DType::f64, x.view().shape());

    activation_forward(ctx, activation, x.view(), y.view());
    activation_forward(ctx, activation, x64.view(), y64.view());
    activation_backward(ctx, activation, x.view(), one.view(), dx.view());
    activation_backward(ctx, activation, x64.view(), one64.view(), dx64.view());

    const auto found = to_doubles(y.view());
    const auto expected = to_doubles(y64.view());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], 1e-6 * std::max(std::abs(expected[i]), 0.1))
          << "activation " << static_cast<int>(activation) << " at " << x.view().data<float>()[i];
    }
    const auto slope = to_doubles(dx.view());
    const auto expected_slope = to_doubles(dx64.view());
    for (std::size_t i = 0; i < slope.size(); ++i) {
      ASSERT_NEAR(slope[i], expected_slope[i], 2e-6 * std::max(std::abs(expected_slope[i]), 1.0))
          << "slope " << static_cast<int>(activation) << " at " << x.view().data<float>()[i];
    }
  }
}

TEST_F(ActivationOps, FarArgumentsStayFiniteAndNansStayVisible) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor_of(DType::f32, {3}, {-1e4, 1e4, nan});
  for (const Activation activation :
       {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    Tensor y = filled_tensor(DType::f32, {3}, 5);

    activation_forward(ctx, activation, x.view(), y.view());

    EXPECT_EQ(y.view().data<float>()[0], 0.0F);
    EXPECT_EQ(y.view().data<float>()[1], 1e4F);
    EXPECT_TRUE(std::isnan(y.view().data<float>()[2])) << static_cast<int>(activation);
  }
}

TEST_F(ActivationOps, InPlaceGivesTheSameBits) {
  const Tensor x = random_tensor(DType::f32, {37, 13}, 1);
  const Tensor dy = random_tensor(DType::f32, {37, 13}, 2);
  for (const Activation activation : kPlain) {
    Tensor y = poisoned(DType::f32, {37, 13});
    Tensor dx = poisoned(DType::f32, {37, 13});
    activation_forward(ctx, activation, x.view(), y.view());
    activation_backward(ctx, activation, x.view(), dy.view(), dx.view());

    Tensor in_place = x.clone();
    activation_forward(ctx, activation, in_place.view(), in_place.view());
    EXPECT_TRUE(same_bits(in_place.view(), y.view()));
    Tensor over_x = x.clone();
    activation_backward(ctx, activation, over_x.view(), dy.view(), over_x.view());
    EXPECT_TRUE(same_bits(over_x.view(), dx.view()));
    Tensor over_dy = dy.clone();
    activation_backward(ctx, activation, x.view(), over_dy.view(), over_dy.view());
    EXPECT_TRUE(same_bits(over_dy.view(), dx.view()));
  }
}

TEST_F(ActivationOps, ANanIsTheAmax) {
  Tensor gate_up = random_tensor(DType::f32, {3, 26}, 1);
  gate_up.view().data<float>()[15] = std::numeric_limits<float>::quiet_NaN();
  Tensor y = poisoned(DType::f32, {3, 13});
  Tensor amax = filled_tensor(DType::f32, {1}, 0);

  gated_forward(ctx, Activation::swiglu, gate_up.view(), y.view(), amax.view());

  EXPECT_TRUE(std::isnan(amax.view().data<float>()[0]));
}

TEST_F(ActivationOps, EmptyIsLegalAndWrongOperandsAreNamed) {
  Tensor none(Device::cpu, DType::f32, {0, 4});
  Tensor none_out(Device::cpu, DType::f32, {0, 2});
  gated_forward(ctx, Activation::swiglu, none.view(), none_out.view());
  activation_forward(ctx, Activation::gelu, none.view(), none.view());

  const Tensor x = filled_tensor(DType::f32, {3, 4}, 0);
  Tensor y = filled_tensor(DType::f32, {3, 2}, 0);
  Tensor wide = filled_tensor(DType::f64, {3, 4}, 0);
  expect_error_naming("activation_forward y",
                      [&] { activation_forward(ctx, Activation::gelu, x.view(), y.view()); });
  expect_error_naming("activation_backward dx", [&] {
    activation_backward(ctx, Activation::gelu, x.view(), x.view(), wide.view());
  });
  expect_error_naming("gated_forward gate_up",
                      [&] { gated_forward(ctx, Activation::swiglu, y.view(), y.view()); });
  expect_error_naming("gated_forward amax", [&] {
    gated_forward(ctx, Activation::swiglu, x.view(), y.view(), y.view());
  });
  expect_error_naming("gated_backward dgate_up", [&] {
    gated_backward(ctx, Activation::swiglu, x.view(), y.view(), y.view());
  });
  expect_error_naming("gated",
                      [&] { activation_forward(ctx, Activation::swiglu, x.view(), wide.view()); });
}

}  // namespace
}  // namespace hyperslab::ops
