// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "finite_difference.hpp"
#include "hyperslab/core/batch.hpp"
#include "hyperslab/ops/loss.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Dim kRows = 6;
constexpr Dim kVocabulary = 11;
constexpr int kColumns = 7;  // weight, old, advantage, reference, and those of three teachers
constexpr Dim kTeachers = 3;

struct Terms {
  Tensor values = random_tensor(DType::f32, {kRows, kColumns}, 7);
  Tensor ids =
      int_tensor({kRows, kTeachers}, {0, 10, 5, 1, 2, 3, 4, 5, 6, 5, 7, 9, 0, 1, 2, 8, 9, 10});

  Terms() {
    for (Dim row = 0; row < kRows; ++row) {
      float* value = values.view().data<float>() + row * kColumns;
      value[0] = static_cast<float>(row) * 0.25F;         // a weight of 0 is among them
      value[1] = -2.0F - 0.2F * static_cast<float>(row);  // old
      value[3] = -1.5F - 0.3F * static_cast<float>(row);  // reference
    }
  }
  [[nodiscard]] TokenTerms of(const TokenLoss& loss) const {
    return {values.view(), ids.view(), loss};
  }
};

TokenLoss weighted() { return {.weight = 0}; }
TokenLoss clipped(float kl = 0) {
  return {.objective = TokenObjective::clipped,
          .weight = 0,
          .old_log_probability = 1,
          .advantage = 2,
          .reference = kl > 0 ? 3 : -1,
          .clip_low = 0.2F,
          .clip_high = 0.3F,
          .kl_weight = kl};
}
TokenLoss taught(float share) {
  return {.weight = 0, .first_teacher = 4, .teachers = kTeachers, .teacher_weight = share};
}

class TokenLosses : public OpsTest {
 protected:
  StepState state;
  Terms terms;
  Tensor targets = int_tensor({kRows}, {0, 10, kIgnoredTarget, 5, 2, 8});
  void SetUp() override { state.gradient_scale = 0.5F; }

  [[nodiscard]] Tensor sums_of(const Tensor& logits, const TokenLoss& loss, float z_loss = 0) {
    Tensor scratch = logits.clone();
    Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(
        ctx,
        {scratch.view(), whole_vocabulary(kVocabulary), targets.view(), {}, z_loss, terms.of(loss)},
        nullptr, WithGradient::no, sums.view());
    return sums;
  }
  void expect_gradient_of(const TokenLoss& loss, float z_loss = 0) {
    Tensor logits = random_tensor(DType::f64, {kRows, kVocabulary}, 1);
    Tensor dlogits = logits.clone();
    Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(
        ctx,
        {dlogits.view(), whole_vocabulary(kVocabulary), targets.view(), {}, z_loss, terms.of(loss)},
        &state, WithGradient::yes, sums.view());
    expect_gradient("dlogits", logits.view(), dlogits.view(), [&] {
      const auto found = to_doubles(sums_of(logits, loss, z_loss).view());
      return 0.5 * (found[kSumLoss] + found[kSumZLoss]);
    });
  }
};

double log_probability(const Tensor& logits, Dim row, Dim column) {
  const double* x = logits.view().data<double>() + row * kVocabulary;
  double sum = 0;
  for (Dim i = 0; i < kVocabulary; ++i) sum += std::exp(x[i]);
  return x[column] - std::log(sum);
}

TEST_F(TokenLosses, GradientsMatchDifferences) {
  expect_gradient_of(weighted());
  expect_gradient_of(weighted(), 0.125F);
  expect_gradient_of(clipped());
  expect_gradient_of(clipped(0.5F));
  expect_gradient_of(clipped(0.5F), 0.125F);
  expect_gradient_of(taught(1));
  expect_gradient_of(taught(0.25F), 0.125F);
}

TEST_F(TokenLosses, SumsByTheirDefinitions) {
  const Tensor logits = random_tensor(DType::f64, {kRows, kVocabulary}, 1);
  const auto* ids = targets.view().data<std::int32_t>();
  double cross_entropy = 0;
  double weights = 0;
  double policy = 0;
  double kl = 0;
  double cut = 0;
  double teaching = 0;
  for (Dim row = 0; row < kRows; ++row) {
    if (ids[row] == kIgnoredTarget) continue;
    const float* value = terms.values.view().data<float>() + row * kColumns;
    const auto at = [&](int column) { return static_cast<double>(value[column]); };
    const double l = log_probability(logits, row, ids[row]);
    weights += at(0);
    cross_entropy -= at(0) * l;
    const double ratio = std::exp(l - at(1));
    const double bounded =
        std::clamp(ratio, 1 - static_cast<double>(0.2F), 1 + static_cast<double>(0.3F));
    policy -= at(0) * std::min(ratio * at(2), bounded * at(2));
    cut += bounded * at(2) < ratio * at(2) ? 1 : 0;
    const double d = at(3) - l;
    kl += at(0) * (std::exp(d) - d - 1);
    double all = 0;
    for (int j = 0; j < kTeachers; ++j) all += std::exp(at(4 + j));
    for (int j = 0; j < kTeachers; ++j) {
      const double q = std::exp(at(4 + j)) / all;
      const auto id = terms.ids.view().data<std::int32_t>()[row * kTeachers + j];
      teaching += at(0) * q * (std::log(q) - log_probability(logits, row, id));
    }
  }
  EXPECT_GT(cut, 0);
  EXPECT_LT(cut, 5);

  const auto plain = to_doubles(sums_of(logits, weighted()).view());
  EXPECT_NEAR(plain[kSumLoss], cross_entropy, 1e-12);
  EXPECT_NEAR(plain[kSumWeights], weights, 1e-12);
  EXPECT_EQ(plain[kSumTokens], 5);
  EXPECT_EQ(plain[kSumMarked], 0);
  const auto of_policy = to_doubles(sums_of(logits, clipped(0.5F)).view());
  EXPECT_NEAR(of_policy[kSumLoss], policy + 0.5 * kl, 1e-12);
  EXPECT_NEAR(of_policy[kSumKl], kl, 1e-12);
  EXPECT_EQ(of_policy[kSumMarked], cut);
  const auto half = to_doubles(sums_of(logits, taught(0.25F)).view());
  EXPECT_NEAR(half[kSumLoss], 0.75 * cross_entropy + 0.25 * teaching, 1e-12);
}

TEST_F(TokenLosses, OnesAreTheLossWithoutValues) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor logits = random_tensor(dtype, {kRows, kVocabulary}, 1);
    Tensor with = logits.clone();
    Tensor without = logits.clone();
    Tensor ones = filled_tensor(DType::f32, {kRows, 1}, 1);
    Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
    Tensor expected = filled_tensor(DType::f32, {kSumCount}, 0);
    const VocabularyShard all = whole_vocabulary(kVocabulary);
    softmax_cross_entropy(ctx,
                          {with.view(), all, targets.view(), {}, 0, {ones.view(), {}, weighted()}},
                          &state, WithGradient::yes, sums.view());
    softmax_cross_entropy(ctx, {without.view(), all, targets.view()}, &state, WithGradient::yes,
                          expected.view());
    EXPECT_TRUE(same_bits(with.view(), without.view()));
    EXPECT_TRUE(same_bits(sums.view(), expected.view()));
  }
}

TEST_F(TokenLosses, AWeightOfZeroTakesNoPartWhateverTheOtherValuesAre) {
  Tensor logits = random_tensor(DType::f64, {kRows, kVocabulary}, 1);
  float* value = terms.values.view().data<float>();
  value[0] = 0;             // the first row's weight
  value[1] = -1e30F;        // its ratio is infinite
  value[kColumns + 2] = 0;  // the second row's advantage, with such a ratio
  value[kColumns + 1] = -1e30F;
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
  softmax_cross_entropy(
      ctx,
      {logits.view(), whole_vocabulary(kVocabulary), targets.view(), {}, 0, terms.of(clipped())},
      &state, WithGradient::yes, sums.view());

  EXPECT_TRUE(std::isfinite(to_doubles(sums.view())[kSumLoss]));
  const auto found = to_doubles(logits.view());
  for (Dim i = 0; i < 2 * kVocabulary; ++i) EXPECT_EQ(found[static_cast<std::size_t>(i)], 0) << i;
}

TEST_F(TokenLosses, AVocabularyOverRanksHasTheLossOfOne) {
  const Dim width = 4;  // columns of a rank, of 11 tokens on three
  for (const TokenLoss& loss : {weighted(), clipped(0.5F), taught(0.25F)}) {
    const Tensor logits = random_tensor(DType::f64, {kRows, kVocabulary}, 1);
    Tensor whole = logits.clone();
    Tensor expected = filled_tensor(DType::f64, {kSumCount}, 0);
    softmax_cross_entropy(
        ctx,
        {whole.view(), whole_vocabulary(kVocabulary), targets.view(), {}, 0.125F, terms.of(loss)},
        &state, WithGradient::yes, expected.view());
    const Dim of_row = row_statistics(loss);
    Tensor gathered = poisoned(DType::f64, {3, kRows, of_row});
    const auto rows_of = [&](Dim rank, Tensor& part) -> LossRows {
      return {
          part.view(),    {rank * width, std::min(width, kVocabulary - rank * width), kVocabulary},
          targets.view(), {},
          0.125F,         terms.of(loss)};
    };
    std::vector<Tensor> parts;
    for (Dim rank = 0; rank < 3; ++rank) {
      Tensor& part = parts.emplace_back(filled_tensor(DType::f64, {kRows, width}, 99));
      for (Dim row = 0; row < kRows; ++row) {
        const Dim count = std::min(width, kVocabulary - rank * width);
        std::copy_n(logits.view().data<double>() + row * kVocabulary + rank * width, count,
                    part.view().data<double>() + row * width);
      }
      softmax_statistics(ctx, rows_of(rank, part),
                         gathered.view().slice(rank, 1).reshaped({kRows, of_row}));
    }
    for (Dim rank = 0; rank < 3; ++rank) {
      Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);
      vocabulary_cross_entropy(ctx, rows_of(rank, parts[static_cast<std::size_t>(rank)]),
                               gathered.view(), &state, WithGradient::yes, sums.view());
      expect_values(sums.view(), to_doubles(expected.view()), 1e-12);
      for (Dim row = 0; row < kRows; ++row) {
        for (Dim i = 0; i < width && rank * width + i < kVocabulary; ++i) {
          EXPECT_NEAR(parts[static_cast<std::size_t>(rank)].view().data<double>()[row * width + i],
                      whole.view().data<double>()[row * kVocabulary + rank * width + i], 1e-14);
        }
      }
    }
  }
}

TEST_F(TokenLosses, MissingValuesAreRefused) {
  Tensor logits = random_tensor(DType::f32, {kRows, kVocabulary}, 1);
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  const auto run = [&](const TokenTerms& of) {
    softmax_cross_entropy(ctx,
                          {logits.view(), whole_vocabulary(kVocabulary), targets.view(), {}, 0, of},
                          &state, WithGradient::yes, sums.view());
  };
  expect_error_naming("values or ids", [&] { run({{}, {}, clipped()}); });
  expect_error_naming("values or ids", [&] { run({terms.values.view(), {}, taught(1)}); });
  TokenLoss beyond = weighted();
  beyond.weight = kColumns;
  expect_error_naming("values or ids", [&] { run(terms.of(beyond)); });
}

/// Two samples of 6 tokens: a pair of 3 and 2 tokens and padding, and two pairs of 1 and 2.
class Preference : public OpsTest {
 protected:
  static constexpr Dim kTokens = 12;
  Tensor pairs = int_tensor({2, 6}, {0, 0, 0, 1, 1, kNoPair, 0, 1, 1, 2, 3, 3});
  Tensor targets = int_tensor(
      {kTokens}, {1, 2, kIgnoredTarget, 3, kIgnoredTarget, kIgnoredTarget, 1, 2, 3, 4, 5, 6});
  Tensor references = random_tensor(DType::f32, {kTokens, 2}, 3);
  Tensor scores = random_tensor(DType::f64, {kTokens, kTargetScoreCount}, 4);
  Tensor weights = poisoned(DType::f32, {kTokens, 1});
  Tensor sums = filled_tensor(DType::f64, {kSumCount}, 0);

  void run() {
    const PairRows rows = {scores.view(), references.view(), 1, targets.view(), pairs.view(), 0.5F};
    preference_loss(ctx, rows, weights.view(), sums.view());
  }
  [[nodiscard]] double gain(Dim row) const {
    return -scores.view().data<double>()[2 * row] -
           static_cast<double>(references.view().data<float>()[2 * row + 1]);
  }
};

TEST_F(Preference, LossAndWeightsByTheirDefinitions) {
  run();

  const std::vector<double> margins = {gain(0) + gain(1) - gain(3), gain(6) - gain(7) - gain(8),
                                       gain(9) - gain(10) - gain(11)};
  double loss = 0;
  double preferred = 0;
  for (const double margin : margins) {
    loss += std::log1p(std::exp(-0.5 * margin));
    preferred += margin > 0 ? 1 : 0;
  }
  const auto found = to_doubles(sums.view());
  EXPECT_NEAR(found[kSumLoss], loss, 1e-12);
  EXPECT_EQ(found[kSumWeights], 3);
  EXPECT_EQ(found[kSumTokens], 9);
  EXPECT_EQ(found[kSumMarked], preferred);
  const auto slope = [&](std::size_t pair) { return 0.5 / (1 + std::exp(0.5 * margins[pair])); };
  expect_values(weights.view(),
                {slope(0), slope(0), 0, -slope(0), 0, 0, slope(1), -slope(1), -slope(1), slope(2),
                 -slope(2), -slope(2)},
                1e-7);
}

TEST_F(Preference, WeightsAreTheDerivative) {
  run();
  const Tensor found = weights.clone();
  for (Dim row = 0; row < kTokens; ++row) {
    double* score = scores.view().data<double>() + 2 * row;
    const auto loss_at = [&](double offset) {
      const double old = *score;
      *score = old + offset;
      sums = filled_tensor(DType::f64, {kSumCount}, 0);
      run();
      *score = old;
      return to_doubles(sums.view())[kSumLoss];
    };
    const double slope = (loss_at(1e-4) - loss_at(-1e-4)) / 2e-4;
    EXPECT_NEAR(static_cast<double>(found.view().data<float>()[row]), slope, 1e-6) << row;
  }
}

TEST_F(Preference, FarMarginsDoNotOverflow) {
  for (const double far : {-3000.0, 3000.0}) {
    scores.view().data<double>()[0] = far;
    sums = filled_tensor(DType::f64, {kSumCount}, 0);
    run();
    EXPECT_TRUE(std::isfinite(to_doubles(sums.view())[kSumLoss]));
    for (const double weight : to_doubles(weights.view())) EXPECT_TRUE(std::isfinite(weight));
  }
}

}  // namespace
}  // namespace hyperslab::ops
