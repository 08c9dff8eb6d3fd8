// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/classes.hpp"

#include <algorithm>
#include <cmath>

#include "classes_case.hpp"
#include "finite_difference.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using ops::test::class_labels;
using ops::test::class_weights;

class Classes : public OpsTest {
 protected:
  StepState state;
  void SetUp() override { state.gradient_scale = 0.5F; }
};

double sum_of(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

/// sum of elements of a * b.
double dot(const Tensor& a, const Tensor& b) {
  const auto x = to_doubles(a.view());
  const auto y = to_doubles(b.view());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

TEST_F(Classes, LossByHand) {
  // p = (1/4, 3/4); rows: one label; two labels; smoothed alike; none.
  Tensor logits = tensor_of(DType::f64, {3, 2}, {0, std::log(3.0), 0, std::log(3.0), 5, 6});
  const Tensor labels = int_tensor({3, 2}, {1, 1, 0, 1, kIgnoredTarget, kIgnoredTarget});
  const Tensor weights = tensor_of(DType::f32, {3}, {1, 0.75, 1});
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);

  class_cross_entropy(ctx, {logits.view(), 2, labels.view(), weights.view()}, 0, &state,
                      WithGradient::yes, sums.view());

  const double first = -std::log(0.75);
  const double second = -0.75 * std::log(0.25) - 0.25 * std::log(0.75);
  EXPECT_NEAR(sum_of(sums, kSumLoss), first + second, 1e-12);
  EXPECT_EQ(sum_of(sums, kSumTokens), 2);
  EXPECT_EQ(sum_of(sums, kSumCorrect), 1);  // the second row's main label is 0
  EXPECT_EQ(sum_of(sums, kSumCorrect5), 2);
  expect_values(logits.view(), {0.125, -0.125, -0.25, 0.25, 0, 0}, 1e-7);
}

TEST_F(Classes, SmoothingSharesTheTargetEvenly) {
  Tensor logits = tensor_of(DType::f64, {1, 4}, {0, 0, 0, std::log(5.0)});  // p = 1/8 x 3, 5/8
  const Tensor labels = int_tensor({1, 2}, {3, 3});
  const Tensor weights = tensor_of(DType::f32, {1}, {1});
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);

  class_cross_entropy(ctx, {logits.view(), 4, labels.view(), weights.view()}, 0.2, &state,
                      WithGradient::yes, sums.view());

  const double expected = -0.8 * std::log(0.625) - 0.05 * (3 * std::log(0.125) + std::log(0.625));
  EXPECT_NEAR(sum_of(sums, kSumLoss), expected, 1e-12);
  const double rest = 0.5 * (0.125 - 0.05);
  expect_values(logits.view(), {rest, rest, rest, 0.5 * (0.625 - 0.85)}, 1e-7);
}

TEST_F(Classes, TheFiveLargestCountAndOfEqualOnesTheFirst) {
  Tensor logits = tensor_of(DType::f32, {1, 8}, {1, 1, 1, 1, 1, 1, 0, 2});
  const Tensor weights = tensor_of(DType::f32, {1}, {1});
  const auto fifth = [&](std::int32_t label) {
    Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
    Tensor copy = logits.clone();
    class_cross_entropy(ctx,
                        {copy.view(), 8, int_tensor({1, 2}, {label, label}).view(), weights.view()},
                        0, &state, WithGradient::no, sums.view());
    EXPECT_TRUE(same_bits(copy.view(), logits.view())) << "without gradient nothing is written";
    return sum_of(sums, kSumCorrect5);
  };
  for (const std::int32_t label : {7, 0, 1, 2, 3}) EXPECT_EQ(fifth(label), 1) << label;
  for (const std::int32_t label : {4, 5, 6}) EXPECT_EQ(fifth(label), 0) << label;
}

TEST_F(Classes, LossGradientMatchesDifferencesAndPaddingTakesNoPart) {
  const Dim classes = 9;
  Tensor logits = random_tensor(DType::f64, {5, classes + 3}, 1);
  const Tensor labels = class_labels(5, classes);
  const Tensor weights = class_weights(5);
  const auto loss = [&](Tensor& x, WithGradient gradient) {
    Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
    class_cross_entropy(ctx, {x.view(), classes, labels.view(), weights.view()}, 0.1, &state,
                        gradient, sums.view());
    return 0.5 * sum_of(sums, kSumLoss);
  };
  Tensor dlogits = logits.clone();
  (void)loss(dlogits, WithGradient::yes);

  expect_gradient("dlogits", logits.view(), dlogits.view(), [&] {
    Tensor scratch = logits.clone();
    return loss(scratch, WithGradient::no);
  });
}

TEST_F(Classes, ALabelThatIsNoneIsRefused) {
  Tensor logits = random_tensor(DType::f32, {2, 4}, 1);
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  const Tensor weights = class_weights(2);
  EXPECT_THROW(class_cross_entropy(
                   ctx, {logits.view(), 4, int_tensor({2, 2}, {0, 1, 4, 0}).view(), weights.view()},
                   0, &state, WithGradient::no, sums.view()),
               Error);
}

TEST_F(Classes, PatchTokensByHandWithAndWithoutAClassToken) {
  const Tensor patches = tensor_of(DType::f32, {2, 2, 1}, {1, 2, 3, 4});
  const Tensor token = tensor_of(DType::f32, {1}, {10});
  const Tensor positions = tensor_of(DType::f32, {3, 1}, {100, 200, 300});
  Tensor with = filled_tensor(DType::f32, {2, 3, 1}, 0);
  Tensor without = filled_tensor(DType::f32, {2, 2, 1}, 0);

  patch_tokens_forward(ctx, patches.view(), token.view(), positions.view(), with.view());
  patch_tokens_forward(ctx, patches.view(), {}, {}, without.view());

  expect_values(with.view(), {110, 201, 302, 110, 203, 304});
  expect_values(without.view(), {1, 2, 3, 4});
}

TEST_F(Classes, PatchTokenGradientsAreSumsOverTheSamples) {
  const Tensor dy = tensor_of(DType::f32, {2, 3, 1}, {1, 2, 3, 10, 20, 30});
  Tensor dpatches = filled_tensor(DType::f32, {2, 2, 1}, 0);
  Tensor dtoken = filled_tensor(DType::f32, {1}, 5);
  Tensor dpositions = filled_tensor(DType::f32, {3, 1}, 7);

  patch_tokens_backward(ctx, dy.view(), Accumulate::yes, dpatches.view(), dtoken.view(),
                        dpositions.view());

  expect_values(dpatches.view(), {2, 3, 20, 30});
  expect_values(dtoken.view(), {16});
  expect_values(dpositions.view(), {18, 29, 40});
  patch_tokens_backward(ctx, dy.view(), Accumulate::no, dpatches.view(), dtoken.view(),
                        dpositions.view());
  expect_values(dtoken.view(), {11});
  expect_values(dpositions.view(), {11, 22, 33});
}

TEST_F(Classes, PoolingIsTheAdjointOfItsBackward) {
  const Dim B = 3;
  const Dim T = 4;
  const Dim C = 5;
  for (const bool token : {true, false}) {
    for (const auto& [first, count] : {std::array<Dim, 2>{0, 12}, {0, 6}, {6, 6}, {5, 3}}) {
      const PooledRows rows = {B, T, first, token};
      const Tensor x = random_tensor(DType::f64, {1, count, C}, 1);
      const Tensor delta = random_tensor(DType::f64, {1, count, C}, 2);
      const Tensor dpooled = random_tensor(DType::f64, {B, C}, 3);
      Tensor pooled = filled_tensor(DType::f64, {B, C}, 9);
      Tensor dx = filled_tensor(DType::f64, {1, count, C}, 9);
      pool_rows_forward(ctx, rows, x.view(), {}, pooled.view());
      pool_rows_backward(ctx, rows, dpooled.view(), dx.view());
      EXPECT_NEAR(dot(pooled, dpooled), dot(x, dx), 1e-12) << token << first;
      const double without = dot(pooled, dpooled);
      pool_rows_forward(ctx, rows, x.view(), delta.view(), pooled.view());
      EXPECT_NEAR(dot(pooled, dpooled), without + dot(delta, dx), 1e-12);
    }
  }
}

TEST_F(Classes, PartsOfTheRowsPoolToTheWhole) {
  const Tensor x = random_tensor(DType::f64, {1, 12, 2}, 1);
  for (const bool token : {true, false}) {
    Tensor whole = filled_tensor(DType::f64, {3, 2}, 0);
    Tensor part = whole.clone();
    Tensor rest = whole.clone();
    pool_rows_forward(ctx, {3, 4, 0, token}, x.view(), {}, whole.view());
    pool_rows_forward(ctx, {3, 4, 0, token}, x.view().reshaped({12, 2}).slice(0, 5), {},
                      part.view());
    pool_rows_forward(ctx, {3, 4, 5, token}, x.view().reshaped({12, 2}).slice(5, 7), {},
                      rest.view());
    const auto a = to_doubles(part.view());
    const auto b = to_doubles(rest.view());
    const auto sum = to_doubles(whole.view());
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(a[i] + b[i], sum[i], 1e-14);
  }
}

TEST_F(Classes, SinusoidsShowRowAndColumn) {
  Tensor table = filled_tensor(DType::f64, {5, 8}, 3);  // a class token and 2 x 2 patches
  sincos2d_table(ctx, 2, table.view());
  const auto at = to_doubles(table.view());
  for (std::size_t c = 0; c < 8; ++c) EXPECT_EQ(at[c], 0) << "class token";
  // Patch 3 is row 1, column 1; omega is 1 and 1/100.
  const std::vector<double> last = {std::sin(1.0), std::sin(0.01), std::cos(1.0), std::cos(0.01),
                                    std::sin(1.0), std::sin(0.01), std::cos(1.0), std::cos(0.01)};
  for (std::size_t c = 0; c < 8; ++c) EXPECT_NEAR(at[4 * 8 + c], last[c], 1e-15);
  // Patch 1 is row 0, column 1.
  EXPECT_NEAR(at[2 * 8], std::sin(1.0), 1e-15);
  EXPECT_EQ(at[2 * 8 + 4], 0);
}

TEST_F(Classes, DropPathKeepsWholeSamplesAndTheMean) {
  const Dim B = 4096;
  const Tensor x = filled_tensor(DType::f32, {B, 2, 3}, 1);
  std::vector<std::int64_t> places(static_cast<std::size_t>(B));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
  Tensor positions(Device::cpu, DType::i64, {B});
  std::ranges::copy(places, positions.view().data<std::int64_t>());
  Tensor y = filled_tensor(DType::f32, {B, 2, 3}, 0);
  const Dropout path = {0.25F, 7, 3, positions.view(), &state};

  drop_path(ctx, path, x.view(), y.view());

  const auto values = to_doubles(y.view());
  Dim kept = 0;
  for (Dim b = 0; b < B; ++b) {
    const auto first = values.begin() + b * 6;
    EXPECT_TRUE(std::all_of(first, first + 6, [&](double v) { return v == *first; })) << b;
    EXPECT_TRUE(*first == 0 || std::abs(*first - 1 / 0.75) < 1e-6);
    kept += *first != 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(B), 0.75, 0.03);
  Tensor part = filled_tensor(DType::f32, {1, 7, 1}, 1);  // elements 4 ... 10 of the same samples
  Dropout cut = path;
  cut.elements_per_sample = 6;
  cut.first_element = 4;
  drop_path(ctx, cut, part.view(), part.view());
  const auto of_part = to_doubles(part.view());
  for (std::size_t i = 0; i < of_part.size(); ++i) EXPECT_EQ(of_part[i], values[4 + i]) << i;
}

}  // namespace
}  // namespace hyperslab::ops
