// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "hyperslab/ops/loss.hpp"
#include "ops_test.hpp"
#include "shards.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A loss over a vocabulary that is shared out, all ranks in one process.
struct SharedLoss {
  Sharding sharding;
  Dim N;
  std::vector<Tensor> logits;  ///< of every rank; padding is poisoned
  std::vector<Tensor> sums;    ///< of every rank
  Tensor gathered;
  Tensor scores;  ///< of the targets
  float z_loss = 0;

  SharedLoss(DType dtype, const Sharding& shape, const std::vector<double>& whole)
      : sharding(shape),
        N(static_cast<Dim>(whole.size()) / shape.V),
        gathered(poisoned(dtype, {shape.ranks, N, kRowStatisticCount})),
        scores(poisoned(dtype, {N, kTargetScoreCount})) {
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      const VocabularyShard shard = sharding.of(rank);
      std::vector<double> values(static_cast<std::size_t>(N * sharding.size),
                                 std::numeric_limits<double>::quiet_NaN());
      for (Dim row = 0; row < N; ++row) {
        for (Dim i = 0; i < shard.count; ++i) {
          values[row * sharding.size + i] = whole[row * sharding.V + shard.first + i];
        }
      }
      logits.push_back(tensor_of(dtype, {N, sharding.size}, values));
      sums.push_back(filled_tensor(dtype, {kSumCount}, 1));
    }
  }

  void run(Context& ctx, CView targets, const StepState* state, WithGradient gradient) {
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      softmax_statistics(ctx, {logits[rank].view(), sharding.of(rank), targets},
                         gathered.view().slice(rank, 1).reshaped({N, kRowStatisticCount}));
    }
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      vocabulary_cross_entropy(
          ctx, {logits[rank].view(), sharding.of(rank), targets, scores.view(), z_loss},
          gathered.view(), state, gradient, sums[rank].view());
    }
  }
  /// Of all ranks, (N, V); EXPECTs zeros in the columns of padding.
  [[nodiscard]] std::vector<double> gradient() const {
    std::vector<double> out(static_cast<std::size_t>(N * sharding.V));
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      const VocabularyShard shard = sharding.of(rank);
      const auto values = to_doubles(logits[rank].view());
      for (Dim row = 0; row < N; ++row) {
        for (Dim i = 0; i < sharding.size; ++i) {
          const double value = values[row * sharding.size + i];
          if (i < shard.count) {
            out[row * sharding.V + shard.first + i] = value;
          } else {
            EXPECT_EQ(value, 0) << "padding of rank " << rank;
          }
        }
      }
    }
    return out;
  }
};

double sum_of(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

/// Loss, z-loss, tokens and correct, and dlogits, by the definition.
struct Definition {
  double loss = 0;
  double z_loss = 0;
  double tokens = 0;
  double correct = 0;
  std::vector<double> gradient;

  Definition(const std::vector<double>& logits, Dim V, const std::vector<std::int32_t>& targets,
             double scale, double z = 0)
      : gradient(logits.size(), 0.0) {
    for (std::size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] == kIgnoredTarget) continue;
      const double* x = logits.data() + static_cast<Dim>(row) * V;
      double sum = 0;
      for (Dim i = 0; i < V; ++i) sum += std::exp(x[i]);
      loss += std::log(sum) - x[targets[row]];
      z_loss += z * std::log(sum) * std::log(sum);
      tokens += 1;
      correct += std::max_element(x, x + V) - x == targets[row] ? 1 : 0;
      for (Dim i = 0; i < V; ++i) {
        const double of_z = 1 + 2 * z * std::log(sum);
        gradient[row * V + i] = scale * (of_z * std::exp(x[i]) / sum - (i == targets[row] ? 1 : 0));
      }
    }
  }
};

std::vector<std::int32_t> targets_for(Dim N, Dim V) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
  for (Dim i = 0; i < N; ++i) {
    ids[i] = i % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>((i * 7919 + V - 1) % V);
  }
  return ids;
}

class VocabularyLoss : public OpsTest {
 protected:
  StepState state;
  void SetUp() override { state.gradient_scale = 0.5F; }
};

TEST_F(VocabularyLoss, StatisticsByHand) {
  const VocabularyShard shard = {10, 3, 20};
  Tensor logits = tensor_of(
      DType::f32, {5, 4},
      {1,  3,  3,          99,         std::log(2.0), 0,  0,          99, -1,         -2,
       -3, 99, -kInfinity, -kInfinity, -kInfinity,    99, -kInfinity, 5,  -kInfinity, 99});
  const Tensor targets = int_tensor({5}, {12, 9, kIgnoredTarget, 10, 13});
  Tensor statistics = poisoned(DType::f32, {5, kRowStatisticCount});

  softmax_statistics(ctx, {logits.view(), shard, targets.view()}, statistics.view());

  const double e = std::exp(1.0);
  const std::vector<std::array<double, 4>> expected = {
      {3, 2 + 1 / (e * e), 3, 11},
      {std::log(2.0), 2, -kInfinity, 10},
      {-1, 1 + 1 / e + 1 / (e * e), -kInfinity, 10},
      {-kInfinity, 0, -kInfinity, 10},
      {5, 1, -kInfinity, 11}};
  const auto found = to_doubles(statistics.view());
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Equal infinities are not near each other.
    const double value = expected[i / 4][i % 4];
    EXPECT_TRUE(found[i] == value || std::abs(found[i] - value) < 1e-6) << i << ": " << found[i];
  }
}

TEST_F(VocabularyLoss, ARankOfPaddingAddsNothing) {
  Tensor logits = poisoned(DType::f64, {2, 3});
  const Tensor targets = int_tensor({2}, {0, kIgnoredTarget});
  Tensor statistics = poisoned(DType::f64, {2, kRowStatisticCount});

  softmax_statistics(ctx, {logits.view(), {6, 0, 5}, targets.view()}, statistics.view());

  const std::vector<double> row = {-kInfinity, 0, -kInfinity, 5};
  const auto found = to_doubles(statistics.view());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], row[i % 4]) << i;
}

TEST_F(VocabularyLoss, MatchesTheDefinition) {
  for (const Sharding& sharding : awkward_shardings()) {
    for (const Dim N : {1, 7, 67}) {
      const auto logits = to_doubles(random_tensor(DType::f32, {N, sharding.V}, 1, 4.0).view());
      const auto ids = targets_for(N, sharding.V);
      const Tensor targets = int_tensor({N}, ids);
      const Definition expected(logits, sharding.V, ids, 0.5);
      for (const DType dtype : {DType::f64, DType::f32}) {
        SharedLoss loss(dtype, sharding, logits);

        loss.run(ctx, targets.view(), &state, WithGradient::yes);

        const double within = tolerance(dtype);
        for (const Tensor& sums : loss.sums) {
          EXPECT_NEAR(sum_of(sums, kSumLoss), 1 + expected.loss, within * (1 + expected.loss));
          EXPECT_EQ(sum_of(sums, kSumTokens), 1 + expected.tokens);
          EXPECT_EQ(sum_of(sums, kSumCorrect), 1 + expected.correct);
          EXPECT_EQ(sum_of(sums, kSumStop), 1);
          EXPECT_TRUE(same_bits(sums.view(), loss.sums[0].view())) << "all ranks agree";
        }
        const auto found = loss.gradient();
        for (std::size_t i = 0; i < found.size(); ++i) {
          ASSERT_NEAR(found[i], expected.gradient[i], within) << i;
        }
      }
    }
  }
}

TEST_F(VocabularyLoss, ZLossMatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Sharding& sharding : awkward_shardings()) {
      const auto logits = to_doubles(random_tensor(dtype, {9, sharding.V}, 1, 3.0).view());
      const auto ids = targets_for(9, sharding.V);
      const Definition expected(logits, sharding.V, ids, 0.5, 0.0625);
      SharedLoss loss(dtype, sharding, logits);
      loss.z_loss = 0.0625F;

      loss.run(ctx, int_tensor({9}, ids).view(), &state, WithGradient::yes);

      const double within = 10 * tolerance(dtype);
      for (const Tensor& sums : loss.sums) {
        EXPECT_NEAR(sum_of(sums, kSumLoss), 1 + expected.loss, within * (1 + expected.loss));
        EXPECT_NEAR(sum_of(sums, kSumZLoss), 1 + expected.z_loss, within * (1 + expected.z_loss));
      }
      const auto found = loss.gradient();
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected.gradient[i], within) << i;
      }
    }
  }
}

TEST_F(VocabularyLoss, OneRankHasTheBitsOfTheWholeLoss) {
  for (const Dim V : {1, 13, 1009}) {
    const Tensor logits = random_tensor(DType::f32, {9, V}, 1, 4.0);
    const Tensor targets = int_tensor({9}, targets_for(9, V));
    for (const WithGradient gradient : {WithGradient::no, WithGradient::yes}) {
      SharedLoss shared(DType::f32, {V, V, 1}, to_doubles(logits.view()));
      shared.z_loss = 0.01F;
      Tensor whole = logits.clone();
      Tensor sums = filled_tensor(DType::f32, {kSumCount}, 1);
      Tensor scores = poisoned(DType::f32, {9, kTargetScoreCount});

      shared.run(ctx, targets.view(), &state, gradient);
      softmax_cross_entropy(
          ctx, {whole.view(), whole_vocabulary(V), targets.view(), scores.view(), 0.01F}, &state,
          gradient, sums.view());

      EXPECT_TRUE(same_bits(shared.logits[0].view(), whole.view()));
      EXPECT_TRUE(same_bits(shared.sums[0].view(), sums.view()));
      EXPECT_TRUE(same_bits(shared.scores.view(), scores.view()));
    }
  }
}

TEST_F(VocabularyLoss, LogitsOfMinusInfinityHaveNoPartAndNansAreSeen) {
  // Rank 1 of three owns nothing but -infinity.
  std::vector<double> logits = {1, 2, -kInfinity, -kInfinity, 3, -kInfinity};
  const Tensor targets = int_tensor({1}, {1});
  SharedLoss masked(DType::f32, {6, 2, 3}, logits);
  masked.run(ctx, targets.view(), &state, WithGradient::yes);
  const Definition expected(logits, 6, {1}, 0.5);
  EXPECT_NEAR(sum_of(masked.sums[0], kSumLoss), 1 + expected.loss, 1e-6);
  const auto found = masked.gradient();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected.gradient[i], 1e-6);

  for (std::size_t at = 0; at < 6; ++at) {
    std::vector<double> bad = logits;
    bad[at] = std::numeric_limits<double>::quiet_NaN();
    SharedLoss loss(DType::f32, {6, 2, 3}, bad);
    loss.run(ctx, targets.view(), &state, WithGradient::yes);
    EXPECT_TRUE(std::isnan(sum_of(loss.sums[0], kSumLoss))) << at;
  }
}

TEST_F(VocabularyLoss, NoRowsAreLegal) {
  SharedLoss loss(DType::f32, {5, 3, 2}, {});
  loss.run(ctx, Tensor(Device::cpu, DType::i32, {0}).view(), &state, WithGradient::yes);
  expect_values(loss.sums[1].view(), std::vector<double>(kSumCount, 1.0), 0);
}

TEST_F(VocabularyLoss, WrongOperandsAreNamed) {
  Tensor logits = filled_tensor(DType::f32, {2, 3}, 0);
  Tensor sums = filled_tensor(DType::f32, {kSumCount}, 0);
  Tensor statistics = filled_tensor(DType::f32, {2, kRowStatisticCount}, 0);
  const Tensor targets = int_tensor({2}, {0, 7});
  const auto run = [&](const VocabularyShard& shard, CView gathered, const StepState* step) {
    vocabulary_cross_entropy(ctx, {logits.view(), shard, targets.view()}, gathered, step,
                             WithGradient::yes, sums.view());
  };
  const View one = statistics.view().reshaped({1, 2, kRowStatisticCount});
  expect_error_naming("softmax_statistics targets: row 1 holds token 7, expected less than 6", [&] {
    softmax_statistics(ctx, {logits.view(), {3, 3, 6}, targets.view()}, statistics.view());
  });
  expect_error_naming("softmax_statistics statistics", [&] {
    softmax_statistics(ctx, {logits.view(), {3, 3, 9}, targets.view()}, logits.view());
  });
  expect_error_naming("softmax_statistics shard: f32", [&] {
    softmax_statistics(ctx, {logits.view(), {3, 3, (Dim{1} << 24) + 1}, targets.view()},
                       statistics.view());
  });
  expect_error_naming("vocabulary_cross_entropy shard: tokens 3+4", [&] {
    run({3, 4, 9}, one, &state);
  });
  expect_error_naming("vocabulary_cross_entropy gathered", [&] {
    run({3, 3, 9}, one.slice(0, 0), &state);
  });
  expect_error_naming("vocabulary_cross_entropy gathered", [&] {
    run({3, 3, 9}, statistics.view(), &state);
  });
  expect_error_naming("vocabulary_cross_entropy state", [&] { run({3, 3, 9}, one, nullptr); });
}

}  // namespace
}  // namespace hyperslab::ops
