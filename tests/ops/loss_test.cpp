// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/loss.hpp"

#include <algorithm>

#include "finite_difference.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Loss : public OpsTest {
 protected:
  StepState state;
  void SetUp() override { state.gradient_scale = 0.5F; }
};

VocabularyShard whole(const Tensor& logits) { return whole_vocabulary(logits.view().shape()[1]); }

void copy_row(const Tensor& from, Dim row, Dim count, Tensor& to, Dim columns) {
  std::copy_n(from.view().data<float>() + row * count, count,
              to.view().data<float>() + row * columns);
}

double sum_of(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

TEST_F(Loss, ByHand) {
  Tensor logits = tensor_of(DType::f32, {3, 2}, {0, 0, 0, std::log(3.0), 9, 9});
  const Tensor targets = int_tensor({3}, {1, 1, kIgnoredTarget});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 1);

  softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view()}, &state,
                        WithGradient::yes, sums.view());

  EXPECT_NEAR(sum_of(sums, kSumLoss), 1 + std::log(2.0) + std::log(4.0 / 3.0), 1e-6);
  EXPECT_EQ(sum_of(sums, kSumTokens), 3);
  EXPECT_EQ(sum_of(sums, kSumCorrect), 2);  // of two equal logits the first is the answer
  EXPECT_EQ(sum_of(sums, kSumNormSquared), 1);
  EXPECT_EQ(sum_of(sums, kSumStop), 1);
  expect_values(logits.view(), {0.25, -0.25, 0.125, -0.125, 0, 0});
}

TEST_F(Loss, ScoresOfTargetsByHand) {
  for (const WithGradient gradient : {WithGradient::no, WithGradient::yes}) {
    Tensor logits = tensor_of(DType::f32, {4, 2}, {0, 0, 0, std::log(3.0), 9, 9, 5, 5});
    const Tensor targets = int_tensor({4}, {1, 1, kIgnoredTarget, 0});
    Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
    Tensor scores = poisoned(DType::f32, {4, kTargetScoreCount});

    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view(), scores.view()},
                          &state, gradient, sums.view());

    expect_values(scores.view(), {std::log(2.0), 0, std::log(4.0 / 3.0), 1, 0, 0, std::log(2.0), 1},
                  1e-6);
  }
}

TEST_F(Loss, GradientMatchesDifferences) {
  const Dim V = 11;
  Tensor logits = random_tensor(DType::f64, {4, V}, 1);
  const Tensor targets = int_tensor({4}, {0, 10, kIgnoredTarget, 5});
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
  const auto value = [&] {
    Tensor scratch = logits.clone();
    Tensor fresh = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(ctx, {scratch.view(), whole(scratch), targets.view()}, nullptr,
                          WithGradient::no, fresh.view());
    EXPECT_TRUE(same_bits(scratch.view(), logits.view())) << "without gradient nothing is written";
    return 0.5 * sum_of(fresh, kSumLoss);
  };
  Tensor dlogits = logits.clone();

  softmax_cross_entropy(ctx, {dlogits.view(), whole(dlogits), targets.view()}, &state,
                        WithGradient::yes, sums.view());

  expect_gradient("dlogits", logits.view(), dlogits.view(), value);
}

/// By the definition: z log(Z)^2 a counted row beside a loss that stays what it was.
TEST_F(Loss, ZLossByHandAndByDifferences) {
  const Dim V = 11;
  const float z = 0.125F;
  const Tensor targets = int_tensor({4}, {0, 10, kIgnoredTarget, 5});
  Tensor logits = random_tensor(DType::f64, {4, V}, 1);
  const auto sums_of = [&](float coefficient) {
    Tensor scratch = logits.clone();
    Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(ctx, {scratch.view(), whole(scratch), targets.view(), {}, coefficient},
                          nullptr, WithGradient::no, sums.view());
    return sums;
  };
  double expected = 0;
  for (const Dim row : {0, 1, 3}) {
    double Z = 0;
    for (Dim i = 0; i < V; ++i) Z += std::exp(logits.view().data<double>()[row * V + i]);
    expected += 0.125 * std::log(Z) * std::log(Z);
  }
  Tensor dlogits = logits.clone();
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);

  softmax_cross_entropy(ctx, {dlogits.view(), whole(dlogits), targets.view(), {}, z}, &state,
                        WithGradient::yes, sums.view());

  EXPECT_NEAR(sum_of(sums, kSumZLoss), expected, 1e-12);
  EXPECT_EQ(sum_of(sums, kSumLoss), sum_of(sums_of(0), kSumLoss));
  EXPECT_EQ(sum_of(sums_of(0), kSumZLoss), 0);
  expect_gradient("dlogits with z-loss", logits.view(), dlogits.view(), [&] {
    const Tensor found = sums_of(z);
    return 0.5 * (sum_of(found, kSumLoss) + sum_of(found, kSumZLoss));
  });
}

TEST_F(Loss, LargeLogitsDoNotOverflowAndNansAreSeen) {
  Tensor logits = tensor_of(DType::f32, {1, 3}, {3e38, -3e38, 0});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  softmax_cross_entropy(ctx, {logits.view(), whole(logits), int_tensor({1}, {0}).view()}, &state,
                        WithGradient::yes, sums.view());
  EXPECT_EQ(sum_of(sums, kSumLoss), 0);
  expect_values(logits.view(), {0, 0, 0}, 0);

  for (const Dim at : {0, 1, 2}) {
    Tensor bad = filled_tensor(DType::f32, {1, 3}, 1);
    bad.view().data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    Tensor bad_sums = filled_tensor(DType::f32, {kSumCount}, 0);
    softmax_cross_entropy(ctx, {bad.view(), whole(bad), int_tensor({1}, {0}).view()}, &state,
                          WithGradient::yes, bad_sums.view());
    EXPECT_TRUE(std::isnan(sum_of(bad_sums, kSumLoss))) << at;
  }
}

TEST_F(Loss, NoRowsAreLegal) {
  Tensor logits(Device::cpu, DType::f32, {0, 5});
  const Tensor targets(Device::cpu, DType::i32, {0});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 2);

  softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view()}, &state,
                        WithGradient::yes, sums.view());

  expect_values(sums.view(), std::vector<double>(kSumCount, 2.0), 0);
}

TEST_F(Loss, ColumnsOfPaddingTakeNoPart) {
  const Dim V = 13;
  const Tensor logits = random_tensor(DType::f32, {7, V}, 1, 3.0);
  const Tensor targets = int_tensor({7}, {0, 12, kIgnoredTarget, 5, 6, 7, 8});
  for (const Dim columns : {V, V + 1, V + 51}) {
    for (const WithGradient gradient : {WithGradient::no, WithGradient::yes}) {
      Tensor exact = logits.clone();
      Tensor padded = poisoned(DType::f32, {7, columns});
      for (Dim row = 0; row < 7; ++row) copy_row(logits, row, V, padded, columns);
      Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
      Tensor padded_sums = filled_tensor(DType::f32, {kSumCount}, 0);

      softmax_cross_entropy(ctx, {exact.view(), whole(exact), targets.view()}, &state, gradient,
                            sums.view());
      softmax_cross_entropy(ctx, {padded.view(), whole_vocabulary(V), targets.view()}, &state,
                            gradient, padded_sums.view());

      EXPECT_TRUE(same_bits(sums.view(), padded_sums.view()));
      for (Dim row = 0; row < 7; ++row) {
        for (Dim i = 0; i < columns; ++i) {
          const float found = padded.view().data<float>()[row * columns + i];
          if (i < V) {
            ASSERT_EQ(found, exact.view().data<float>()[row * V + i]);
          } else if (gradient == WithGradient::yes) {
            ASSERT_EQ(found, 0);
          } else {
            ASSERT_TRUE(std::isnan(found));
          }
        }
      }
    }
  }
}

TEST_F(Loss, WrongOperandsAreNamed) {
  Tensor logits = filled_tensor(DType::f32, {2, 3}, 0);
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  const Tensor targets = int_tensor({2}, {0, 3});
  expect_error_naming("softmax_cross_entropy targets: row 1 holds token 3", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view()}, &state,
                          WithGradient::yes, sums.view());
  });
  expect_error_naming("softmax_cross_entropy targets", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view().slice(0, 1)}, &state,
                          WithGradient::yes, sums.view());
  });
  expect_error_naming("softmax_cross_entropy shard: expected the whole vocabulary", [&] {
    softmax_cross_entropy(ctx, {logits.view(), {1, 2, 3}, targets.view()}, &state,
                          WithGradient::yes, sums.view());
  });
  expect_error_naming("softmax_cross_entropy shard: tokens 0+4 of 4", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole_vocabulary(4), targets.view()}, &state,
                          WithGradient::yes, sums.view());
  });
  Tensor narrow = filled_tensor(DType::f32, {2, 1}, 0);
  expect_error_naming("softmax_cross_entropy scores", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view(), narrow.view()},
                          &state, WithGradient::yes, sums.view());
  });
  expect_error_naming("softmax_cross_entropy sums", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view()}, &state,
                          WithGradient::yes, sums.view().slice(0, 3));
  });
  expect_error_naming("softmax_cross_entropy z_loss", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view(), {}, -1}, &state,
                          WithGradient::yes, sums.view());
  });
  expect_error_naming("softmax_cross_entropy state", [&] {
    softmax_cross_entropy(ctx, {logits.view(), whole(logits), targets.view()}, nullptr,
                          WithGradient::yes, sums.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
