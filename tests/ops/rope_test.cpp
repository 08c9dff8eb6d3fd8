// SPDX-License-Identifier: Apache-2.0
#include "finite_difference.hpp"
#include "hyperslab/ops/attention.hpp"
#include "ops_test.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Rope : public OpsTest {
 protected:
  HeadLayout layout{.heads = 4, .kv_heads = 2, .head_width = 6};
  Tensor cosines = poisoned(DType::f64, {9, 3});
  Tensor sines = poisoned(DType::f64, {9, 3});
  void SetUp() override {
    rope_table(ctx, rope_frequencies(100, 3), 1, cosines.view(), sines.view());
  }
  void rotate(View qkv, Dim first, Rotation rotation) {
    rope(ctx, layout, cosines.view(), sines.view(), first, rotation, qkv);
  }
};

TEST_F(Rope, TableByHand) {
  for (Dim t = 0; t < 9; ++t) {
    for (Dim i = 0; i < 3; ++i) {
      const double angle = double(t) / std::pow(100.0, 2.0 * double(i) / 6.0);
      EXPECT_NEAR(cosines.view().data<double>()[t * 3 + i], std::cos(angle), 1e-12);
      EXPECT_NEAR(sines.view().data<double>()[t * 3 + i], std::sin(angle), 1e-12);
    }
  }
}

TEST_F(Rope, RotatesQueriesAndKeysByTheirPositionAndLeavesValues) {
  const Dim width = layout.packed_width();
  const Tensor before = random_tensor(DType::f64, {2, 3, width}, 1);
  Tensor qkv = before.clone();

  rotate(qkv.view(), 5, Rotation::forward);

  const auto* x = before.view().data<double>();
  const auto* y = qkv.view().data<double>();
  for (Dim row = 0; row < 6; ++row) {
    for (Dim head = 0; head < 8; ++head) {
      for (Dim i = 0; i < 3; ++i) {
        const Dim low = row * width + head * 6 + i;
        const double angle = head < 6 ? double(5 + row % 3) / std::pow(100.0, double(i) / 3.0) : 0;
        const double cosine = std::cos(angle);
        const double sine = std::sin(angle);
        ASSERT_NEAR(y[low], x[low] * cosine - x[low + 3] * sine, 1e-12) << row << " " << head;
        ASSERT_NEAR(y[low + 3], x[low + 3] * cosine + x[low] * sine, 1e-12) << row << " " << head;
      }
    }
  }
}

TEST_F(Rope, FewerPairsTurnTheFirstFeaturesAlone) {
  Tensor few_cosines = poisoned(DType::f64, {9, 2});
  Tensor few_sines = poisoned(DType::f64, {9, 2});
  rope_table(ctx, rope_frequencies(100, 2), 1.5, few_cosines.view(), few_sines.view());
  const Dim width = layout.packed_width();
  const Tensor before = random_tensor(DType::f64, {1, 3, width}, 1);
  Tensor qkv = before.clone();

  rope(ctx, layout, few_cosines.view(), few_sines.view(), 2, Rotation::forward, qkv.view());

  const auto* x = before.view().data<double>();
  const auto* y = qkv.view().data<double>();
  for (Dim row = 0; row < 3; ++row) {
    for (Dim head = 0; head < 8; ++head) {
      for (Dim i = 0; i < 2; ++i) {
        const Dim low = row * width + head * 6 + i;
        const double angle = double(2 + row) / std::pow(10.0, double(i));
        const double cosine = head < 6 ? 1.5 * std::cos(angle) : 1;
        const double sine = head < 6 ? 1.5 * std::sin(angle) : 0;
        ASSERT_NEAR(y[low], x[low] * cosine - x[low + 2] * sine, 1e-12) << row << " " << head;
        ASSERT_NEAR(y[low + 2], x[low + 2] * cosine + x[low] * sine, 1e-12) << row << " " << head;
        ASSERT_EQ(y[low + 4], x[low + 4]);
      }
    }
  }
}

TEST_F(Rope, InverseIsTheBackwardPass) {
  const Shape shape = {1, 4, layout.packed_width()};
  Tensor qkv = random_tensor(DType::f64, shape, 1);
  const Tensor dy = random_tensor(DType::f64, shape, 2);
  Tensor gradient = dy.clone();

  rotate(gradient.view(), 2, Rotation::inverse);

  expect_gradient("dqkv", qkv.view(), gradient.view(), [&] {
    Tensor rotated = qkv.clone();
    rotate(rotated.view(), 2, Rotation::forward);
    return inner_product(dy.view(), rotated.view());
  });
}

TEST_F(Rope, WrongOperandsAreNamed) {
  Tensor qkv = filled_tensor(DType::f64, {1, 4, layout.packed_width()}, 0);
  expect_error_naming("rope first_position", [&] { rotate(qkv.view(), 6, Rotation::forward); });
  expect_error_naming("rope qkv", [&] {
    rotate(qkv.view().reshaped({2, 2, layout.packed_width()}).slice(0, 1).reshaped({1, 1, 96}), 0,
           Rotation::forward);
  });
  layout.head_width = 4;
  layout.heads = 8;
  expect_error_naming("rope cosines", [&] { rotate(qkv.view(), 0, Rotation::forward); });
  layout.kv_heads = 3;
  expect_error_naming("attention layout", [&] { rotate(qkv.view(), 0, Rotation::forward); });
}

}  // namespace
}  // namespace hyperslab::ops
