// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/loss.hpp"

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

double place(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

TEST_F(Loss, ByHand) {
  Tensor logits = tensor_of(DType::f32, {3, 2}, {0, 0, 0, std::log(3.0), 9, 9});
  const Tensor targets = int_tensor({3}, {1, 1, kIgnoredTarget});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 1);

  softmax_cross_entropy(ctx, logits.view(), targets.view(), &state, WithGradient::yes, sums.view());

  EXPECT_NEAR(place(sums, kSumLoss), 1 + std::log(2.0) + std::log(4.0 / 3.0), 1e-6);
  EXPECT_EQ(place(sums, kSumTokens), 3);
  EXPECT_EQ(place(sums, kSumCorrect), 2);  // of two equal logits the first is the answer
  EXPECT_EQ(place(sums, kSumNormSquared), 1);
  EXPECT_EQ(place(sums, kSumStop), 1);
  expect_values(logits.view(), {0.25, -0.25, 0.125, -0.125, 0, 0});
}

TEST_F(Loss, GradientMatchesDifferences) {
  const Dim V = 11;
  Tensor logits = random_tensor(DType::f64, {4, V}, 1);
  const Tensor targets = int_tensor({4}, {0, 10, kIgnoredTarget, 5});
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
  const auto value = [&] {
    Tensor scratch = logits.clone();
    Tensor fresh = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(ctx, scratch.view(), targets.view(), nullptr, WithGradient::no,
                          fresh.view());
    EXPECT_TRUE(same_bits(scratch.view(), logits.view())) << "without gradient nothing is written";
    return 0.5 * place(fresh, kSumLoss);
  };
  Tensor dlogits = logits.clone();

  softmax_cross_entropy(ctx, dlogits.view(), targets.view(), &state, WithGradient::yes,
                        sums.view());

  expect_gradient("dlogits", logits.view(), dlogits.view(), value);
}

TEST_F(Loss, FloatMatchesTheOracleAndRepeatsItsBits) {
  for (const auto& [N, V] : {std::array<Dim, 2>{1, 1}, {7, 13}, {67, 1009}}) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
    for (Dim i = 0; i < N; ++i) ids[i] = static_cast<std::int32_t>((i * 31) % V);
    const Tensor targets = int_tensor({N}, ids);
    const Tensor logits = random_tensor(DType::f32, {N, V}, 1, 5.0);
    const auto run = [&](DType dtype) {
      std::vector<Tensor> out;
      out.push_back(converted(logits.view(), dtype));
      out.push_back(filled_tensor(dtype, {kSumCount}, 0));
      softmax_cross_entropy(ctx, out[0].view(), targets.view(), &state, WithGradient::yes,
                            out[1].view());
      return out;
    };

    const auto single = run(DType::f32);
    const auto again = run(DType::f32);
    const auto oracle = run(DType::f64);

    for (std::size_t i = 0; i < 2; ++i) {
      if (V > 1 || i == 1) {
        expect_matches_oracle(single[i].view(), oracle[i].view(), std::to_string(i));
      }
      EXPECT_TRUE(same_bits(single[i].view(), again[i].view()));
    }
    EXPECT_EQ(place(single[1], kSumCorrect), place(oracle[1], kSumCorrect));
  }
}

TEST_F(Loss, LargeLogitsDoNotOverflowAndNansAreSeen) {
  Tensor logits = tensor_of(DType::f32, {1, 3}, {3e38, -3e38, 0});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  softmax_cross_entropy(ctx, logits.view(), int_tensor({1}, {0}).view(), &state, WithGradient::yes,
                        sums.view());
  EXPECT_EQ(place(sums, kSumLoss), 0);
  expect_values(logits.view(), {0, 0, 0}, 0);

  for (const Dim at : {0, 1, 2}) {
    Tensor bad = filled_tensor(DType::f32, {1, 3}, 1);
    bad.view().data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    Tensor bad_sums = filled_tensor(DType::f32, {kSumCount}, 0);
    softmax_cross_entropy(ctx, bad.view(), int_tensor({1}, {0}).view(), &state, WithGradient::yes,
                          bad_sums.view());
    EXPECT_TRUE(std::isnan(place(bad_sums, kSumLoss))) << at;
  }
}

TEST_F(Loss, NoRowsAreLegal) {
  Tensor logits(Device::cpu, DType::f32, {0, 5});
  const Tensor targets(Device::cpu, DType::i32, {0});
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 2);

  softmax_cross_entropy(ctx, logits.view(), targets.view(), &state, WithGradient::yes, sums.view());

  expect_values(sums.view(), std::vector<double>(kSumCount, 2.0), 0);
}

TEST_F(Loss, WrongOperandsAreNamed) {
  Tensor logits = filled_tensor(DType::f32, {2, 3}, 0);
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  const Tensor targets = int_tensor({2}, {0, 3});
  expect_error_naming("softmax_cross_entropy targets: row 1 holds token 3", [&] {
    softmax_cross_entropy(ctx, logits.view(), targets.view(), &state, WithGradient::yes,
                          sums.view());
  });
  expect_error_naming("softmax_cross_entropy targets", [&] {
    softmax_cross_entropy(ctx, logits.view(), targets.view().slice(0, 1), &state, WithGradient::yes,
                          sums.view());
  });
  expect_error_naming("softmax_cross_entropy sums", [&] {
    softmax_cross_entropy(ctx, logits.view(), targets.view(), &state, WithGradient::yes,
                          sums.view().slice(0, 3));
  });
  expect_error_naming("softmax_cross_entropy state", [&] {
    softmax_cross_entropy(ctx, logits.view(), targets.view(), nullptr, WithGradient::yes,
                          sums.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
