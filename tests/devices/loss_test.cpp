// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/loss.hpp"

#include <cmath>

#include "ops/shards.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

class Loss : public DevicesTest {
 protected:
  struct Rows {
    Dim N;
    Dim V;
    Dim padding;  ///< columns beyond the vocabulary
  };
  StepState state;
  void SetUp() override {
    DevicesTest::SetUp();
    state.gradient_scale = 0.25F;
  }
  static Tensor targets(Dim N, Dim V) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
    for (Dim i = 0; i < N; ++i) {
      ids[i] = i % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>((i * 7919 + V - 1) % V);
    }
    return int_tensor({N}, ids);
  }
  /// logits, targets, state, sums.
  [[nodiscard]] Problem problem(DType dtype, Tensor logits, Tensor ids) const {
    Problem out(dtype);
    out.in_out(std::move(logits))
        .fixed(std::move(ids))
        .fixed(bytes_of(state))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
    return out;
  }
  /// In bf16, with scores of targets.
  void expect_gradients_of(const Rows& rows) const;
};

/// `padding`: columns beyond the vocabulary.
Problem::Call loss_call(WithGradient gradient, Dim padding = 0, float z_loss = 0) {
  return [=](Context& ctx, const Views& v) {
    const VocabularyShard shard = whole_vocabulary(v[0].shape()[1] - padding);
    softmax_cross_entropy(ctx, {v[0], shard, v[1], {}, z_loss}, struct_at<StepState>(v[2]),
                          gradient, v[3]);
  };
}

/// (N, columns) of which the first `count` are logits; padding is poisoned.
Tensor padded_logits(DType dtype, Dim N, Dim columns, Dim count, std::uint64_t seed) {
  auto values = to_doubles(random_tensor(dtype, {N, columns}, seed, 3.0).view());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (static_cast<Dim>(i) % columns >= count) {
      values[i] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return tensor_of(dtype, {N, columns}, values);
}

double sum_of(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

TEST_F(Loss, MatchesTheOracle) {
  // A warp's row, a block's, rows that fit shared memory and longer ones, odd widths.
  for (const DType dtype : compute_types()) {
    for (const auto& [N, V] : std::vector<std::array<Dim, 2>>{{1, 1},
                                                              {7, 13},
                                                              {67, 257},
                                                              {5, 2048},
                                                              {9, 2049},
                                                              {6, 50257},
                                                              {4, 50304},
                                                              {3, 64003},
                                                              {2, 131072}}) {
      const auto call = loss_call(WithGradient::yes);
      Problem p = problem(dtype, random_tensor(dtype, {N, V}, 1, 3.0), targets(N, V));
      // Without vectors a CPU adds up as many terms one by one.
      if (V > 100'000) p.only_on(Device::cuda);
      p.expect_match(call, "loss of " + std::to_string(V), V == 1 ? 1e30 : 2);
      const auto oracle = p.on_oracle(call);
      const double loss = sum_of(oracle[3], kSumLoss);
      p.on_each(call, [&](const Results& found) {
        for (const SumIndex index : {kSumTokens, kSumCorrect, kSumNormSquared, kSumStop}) {
          EXPECT_EQ(sum_of(found[3], index), sum_of(oracle[3], index)) << index;
        }
        EXPECT_NEAR(sum_of(found[3], kSumLoss), loss, 1e-5 * loss);
      });
    }
  }
}

TEST_F(Loss, ZLossMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const auto& [N, V] : std::vector<std::array<Dim, 2>>{{7, 13}, {67, 257}, {6, 50257}}) {
      const auto call = loss_call(WithGradient::yes, 0, 0.01F);
      const Problem p = problem(dtype, random_tensor(dtype, {N, V}, 1, 3.0), targets(N, V));
      p.expect_match(call, "z-loss of " + std::to_string(V), 2);
      const auto oracle = p.on_oracle(call);
      for (const Device device : p.devices()) {
        const auto found = p.on(device, call);
        for (const SumIndex index : {kSumLoss, kSumZLoss}) {
          const double sum = sum_of(oracle[3], index);
          EXPECT_GT(sum, 0);
          EXPECT_NEAR(sum_of(found[3], index), sum, 1e-5 * sum) << V << " sum " << index;
        }
        // The loss that is logged stays what it was.
        EXPECT_EQ(sum_of(found[3], kSumLoss),
                  sum_of(p.on(device, loss_call(WithGradient::yes))[3], kSumLoss));
      }
    }
  }
}

TEST_F(Loss, ScoresOfTargetsMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const auto& [N, V] :
         std::vector<std::array<Dim, 2>>{{7, 13}, {67, 257}, {1500, 300}, {6, 50257}}) {
      Problem p = problem(dtype, random_tensor(dtype, {N, V}, 1, 3.0), targets(N, V));
      p.output(DType::f32, {N, kTargetScoreCount});
      const auto call = [](Context& ctx, const Views& v) {
        const VocabularyShard shard = whole_vocabulary(v[0].shape()[1]);
        softmax_cross_entropy(ctx, {v[0], shard, v[1], v[4]}, nullptr, WithGradient::no, v[3]);
      };
      const auto oracle = to_doubles(p.on_oracle(call)[4].view());
      p.on_each(call, [&](const Results& results) {
        const auto found = to_doubles(results[4].view());
        for (std::size_t i = 0; i < found.size(); ++i) {
          if (i % kTargetScoreCount == kScoreIsAnswer) {
            ASSERT_EQ(found[i], oracle[i]) << i;
          } else {
            ASSERT_NEAR(found[i], oracle[i], 1e-5 * std::max(1.0, oracle[i])) << i;
          }
        }
      });
    }
  }
}

TEST_F(Loss, ColumnsOfPaddingTakeNoPart) {
  for (const DType dtype : compute_types()) {
    for (const auto& [V, padding] :
         std::vector<std::array<Dim, 2>>{{13, 3}, {2048, 1}, {2051, 125}, {50257, 47}}) {
      const Problem p = problem(dtype, padded_logits(dtype, 5, V + padding, V, 1), targets(5, V));
      const auto call = loss_call(WithGradient::yes, padding);
      p.expect_match(call, "padded loss of " + std::to_string(V), 2);
      p.on_each(call, [V = V, columns = V + padding](const Results& results) {
        const auto found = to_doubles(results[0].view());
        for (std::size_t i = 0; i < found.size(); ++i) {
          const bool is_padding = static_cast<Dim>(i) % columns >= V;
          ASSERT_TRUE(!is_padding || found[i] == 0) << i;
        }
      });
    }
  }
}

void Loss::expect_gradients_of(const Rows& rows) const {
  const auto& [N, V, padding] = rows;
  Problem p = problem(DType::bf16, padded_logits(DType::bf16, N, V + padding, V, 1), targets(N, V));
  p.output(DType::f32, {N, kTargetScoreCount}).only_on(Device::cuda);
  const auto call = [V = V](Context& ctx, const Views& v) {
    softmax_cross_entropy(ctx, {v[0], whole_vocabulary(V), v[1], v[4], 1e-3F},
                          struct_at<StepState>(v[2]), WithGradient::yes, v[3]);
  };
  p.expect_match(call, "loss of many rows of " + std::to_string(V), 2);
  const auto oracle = p.on_oracle(call);
  p.on_each(call, [&](const Results& found) {
    EXPECT_EQ(sum_of(found[3], kSumCorrect), sum_of(oracle[3], kSumCorrect));
  });
}

TEST_F(Loss, ManyRowsThroughSharedMemory) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "rows beyond the shared memory of a GPU";
  // Rows of one piece, two and up to seven, more than all blocks have room for at once, and longer
  // than their logits by a piece; the longest that fit, and longer ones.
  for (const Rows& rows : std::vector<Rows>{{2300, 2049, 7},
                                            {600, 8192, 0},
                                            {600, 8193, 255},
                                            {900, 16384, 0},
                                            {70, 2052, 8212},
                                            {600, 28999, 1},
                                            {900, 50257, 47},
                                            {600, 56832, 0},
                                            {70, 56833, 7}}) {
    expect_gradients_of(rows);
  }
}

// Blocks take another row once they have written the gradient of one: few enough for racecheck.
TEST_F(Loss, ReusesSharedMemory) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "rows beyond the shared memory of a GPU";
  expect_gradients_of({300, 28999, 1});
}

/// Vocabularies whose parts a warp's row holds, and ones that take a block's.
std::vector<Sharding> shardings() {
  auto out = awkward_shardings();
  out.insert(out.end(), {{10007, 5056, 2}, {9000, 2250, 4}, {50257, 12608, 4}});
  return out;
}

TEST_F(Loss, StatisticsMatchTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const Sharding& sharding : shardings()) {
      for (Dim rank = 0; rank < sharding.ranks; ++rank) {
        const VocabularyShard shard = sharding.of(rank);
        Problem p(dtype);
        p.input(padded_logits(dtype, 6, sharding.size, shard.count, 1 + rank))
            .fixed(targets(6, sharding.V))
            .output(DType::f32, {6, kRowStatisticCount});
        const auto call = [=](Context& ctx, const Views& v) {
          softmax_statistics(ctx, {v[0], shard, v[1]}, v[2]);
        };
        const auto oracle = to_doubles(p.on_oracle(call)[2].view());
        p.on_each(call, [&](const Results& results) {
          const auto found = to_doubles(results[2].view());
          for (std::size_t i = 0; i < found.size(); ++i) {
            if (i % kRowStatisticCount == kRowExponentials) {
              EXPECT_NEAR(found[i], oracle[i], 1e-4 * oracle[i]) << sharding.V << ": " << i;
            } else {
              EXPECT_EQ(found[i], oracle[i]) << sharding.V << ": " << i;
            }
          }
        });
      }
    }
  }
}

/// Logits and sums of every rank, then targets, state and what the ranks gather.
Problem shared_problem(DType dtype, const Sharding& sharding, Dim N, const StepState& state,
                       Tensor ids) {
  Problem p(dtype);
  for (Dim rank = 0; rank < sharding.ranks; ++rank) {
    p.in_out(padded_logits(dtype, N, sharding.size, sharding.of(rank).count, 1 + rank))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
  }
  p.fixed(std::move(ids))
      .fixed(bytes_of(state))
      .input(poisoned(DType::f32, {sharding.ranks, N, kRowStatisticCount}));
  return p;
}

Problem::Call shared_call(const Sharding& sharding, WithGradient gradient, float z_loss = 0) {
  return [=](Context& ctx, const Views& v) {
    const auto after = static_cast<std::size_t>(2 * sharding.ranks);
    const View gathered = v[after + 2];
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      const View part = gathered.slice(rank, 1);
      softmax_statistics(ctx, {v[2 * rank], sharding.of(rank), v[after]},
                         part.reshaped({part.shape()[1], kRowStatisticCount}));
    }
    for (Dim rank = 0; rank < sharding.ranks; ++rank) {
      vocabulary_cross_entropy(ctx, {v[2 * rank], sharding.of(rank), v[after], {}, z_loss},
                               gathered, struct_at<StepState>(v[after + 1]), gradient,
                               v[2 * rank + 1]);
    }
  };
}

TEST_F(Loss, AVocabularyOverRanksMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const Sharding& sharding : shardings()) {
      const Problem p = shared_problem(dtype, sharding, 6, state, targets(6, sharding.V));
      const auto call = shared_call(sharding, WithGradient::yes);
      // One logit alone has no gradient but rounding.
      p.expect_match(call, "shared loss of " + std::to_string(sharding.V),
                     sharding.V == 1 ? 1e30 : 2);
      const auto oracle = p.on_oracle(call);
      for (const Device device : p.devices()) {
        const auto found = p.on(device, call);
        const auto without = p.on(device, shared_call(sharding, WithGradient::no));
        for (Dim rank = 0; rank < sharding.ranks; ++rank) {
          const Tensor& sums = found[2 * rank + 1];
          for (const SumIndex index : {kSumTokens, kSumCorrect, kSumStop}) {
            EXPECT_EQ(sum_of(sums, index), sum_of(oracle[2 * rank + 1], index)) << sharding.V;
          }
          const double loss = sum_of(oracle[2 * rank + 1], kSumLoss);
          EXPECT_NEAR(sum_of(sums, kSumLoss), loss, 1e-5 * loss) << sharding.V;
          EXPECT_TRUE(same_bits(sums.view(), found[1].view())) << "all ranks agree";
          EXPECT_TRUE(same_bits(without[2 * rank + 1].view(), sums.view()));
          const Dim count = sharding.of(rank).count;
          EXPECT_TRUE(same_bits(without[2 * rank].view(),
                                padded_logits(dtype, 6, sharding.size, count, 1 + rank).view()))
              << "without gradient nothing is written";
        }
      }
    }
  }
}

TEST_F(Loss, ZLossOfAVocabularyOverRanksMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const Sharding& sharding : {Sharding{13, 5, 3}, {10007, 5056, 2}, {50257, 12608, 4}}) {
      const Problem p = shared_problem(dtype, sharding, 6, state, targets(6, sharding.V));
      const auto call = shared_call(sharding, WithGradient::yes, 0.01F);
      p.expect_match(call, "shared z-loss of " + std::to_string(sharding.V), 2);
      const double sum = sum_of(p.on_oracle(call)[1], kSumZLoss);
      p.on_each(call, [&](const Results& found) {
        EXPECT_NEAR(sum_of(found[1], kSumZLoss), sum, 1e-5 * sum) << sharding.V;
      });
    }
  }
}

TEST_F(Loss, OfEqualLargestLogitsOnTwoRanksTheLowestTokenIsTheAnswer) {
  const Sharding sharding = {6000, 2500, 3};
  for (const Dim target : {7, 2499, 2500, 5999}) {
    for (const Dim other : {7, 2499, 2500, 5999}) {
      Problem p(DType::f32);
      for (Dim rank = 0; rank < 3; ++rank) {
        Tensor logits = filled_tensor(DType::f32, {1, 2500}, -1);
        for (const Dim token : {target, other}) {
          if (token / 2500 == rank) logits.view().data<float>()[token % 2500] = 2;
        }
        p.in_out(std::move(logits)).in_out(filled_tensor(DType::f32, {kSumCount}, 0));
      }
      p.fixed(int_tensor({1}, {static_cast<std::int32_t>(target)}))
          .fixed(bytes_of(state))
          .input(poisoned(DType::f32, {3, 1, kRowStatisticCount}));
      p.on_each(shared_call(sharding, WithGradient::yes), [&](const Results& found) {
        EXPECT_EQ(sum_of(found[1], kSumCorrect), target <= other ? 1 : 0)
            << target << ", " << other;
      });
    }
  }
}

TEST_F(Loss, WithoutGradientNothingIsWritten) {
  for (const DType dtype : compute_types()) {
    for (const Dim V : {100, 3001}) {
      const Tensor logits = random_tensor(dtype, {8, V}, 1, 3.0);
      const Problem p = problem(dtype, logits.clone(), targets(8, V));
      p.on_each(loss_call(WithGradient::no), [&](const Results& found) {
        EXPECT_TRUE(same_bits(found[0].view(), logits.view()));
      });
      p.expect_match(loss_call(WithGradient::no), "loss alone");
    }
  }
}

TEST_F(Loss, OfEqualLargestLogitsTheFirstIsTheAnswer) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Dim V : {40, 5000, 16000}) {
      for (const Dim target : {Dim{3}, V / 2, V - 1}) {
        for (const Dim other : {Dim{3}, V / 2, V - 1, V / 2 + 1}) {
          std::vector<double> logits(static_cast<std::size_t>(V), -1);
          logits[target] = 2;
          logits[other] = 2;
          const Problem p = problem(dtype, tensor_of(dtype, {1, V}, logits),
                                    int_tensor({1}, {static_cast<std::int32_t>(target)}));
          p.on_each(loss_call(WithGradient::yes), [&](const Results& found) {
            EXPECT_EQ(sum_of(found[3], kSumCorrect), 1 + (target <= other ? 1 : 0))
                << V << ": " << target << ", " << other;
          });
        }
      }
    }
  }
}

TEST_F(Loss, LogitsOfMinusInfinityHaveNoPart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : compute_types()) {
    for (const Dim V : {300, 4000}) {
      auto values = to_doubles(random_tensor(dtype, {2, V}, 1).view());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % 100 != 5) values[i] = -kInfinity;
      }
      const Problem p = problem(dtype, tensor_of(dtype, {2, V}, values), int_tensor({2}, {5, 205}));
      p.expect_match(loss_call(WithGradient::yes), "masked logits", dtype == DType::f32 ? 1 : 2);
    }
  }
}

TEST_F(Loss, ManyRows) {
  const auto call = loss_call(WithGradient::yes);
  problem(DType::bf16, random_tensor(DType::bf16, {5003, 67}, 1, 3.0), targets(5003, 67))
      .expect_match(call, "many rows");
}

}  // namespace
}  // namespace hyperslab::ops
