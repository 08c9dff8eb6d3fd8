// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/ops/loss.hpp"
#include "ops/shards.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

constexpr Dim kValueColumns = 7;  // weight, old, advantage, reference, and those of three teachers
constexpr int kTaught = 3;

const std::array<TokenLoss, 4> kTokenLosses = {
    TokenLoss{.weight = 0},
    TokenLoss{.objective = TokenObjective::clipped,
              .weight = 0,
              .old_log_probability = 1,
              .advantage = 2,
              .reference = 3,
              .kl_weight = 0.5F},
    TokenLoss{.first_teacher = 4, .teachers = kTaught, .teacher_weight = 1},
    TokenLoss{.weight = 0, .first_teacher = 4, .teachers = kTaught, .teacher_weight = 0.25F},
};

Tensor ids_of_targets(Dim N, Dim V) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(N));
  for (Dim i = 0; i < N; ++i) {
    ids[i] = i % 5 == 3 ? kIgnoredTarget : static_cast<std::int32_t>((i * 7919 + V - 1) % V);
  }
  return int_tensor({N}, ids);
}

/// Weights of 0 and more, log-probabilities near those of random logits, advantages of both signs.
Tensor values_of(Dim N, Dim V) {
  Tensor values = random_tensor(DType::f32, {N, kValueColumns}, 11);
  const auto far = static_cast<float>(-std::log(static_cast<double>(V)));
  for (Dim row = 0; row < N; ++row) {
    float* value = values.view().data<float>() + row * kValueColumns;
    value[0] = 0.25F * static_cast<float>(row % 6);
    value[1] += far - 2.0F;
    value[3] += far - 2.0F;
  }
  return values;
}

/// Different ids in a row; the target is among those of every other row.
Tensor taught_ids(Dim N, Dim V) {
  std::vector<std::int32_t> ids;
  for (Dim i = 0; i < N; ++i) {
    const Dim target = (i * 7919 + V - 1) % V;
    for (int j = 0; j < kTaught; ++j) {
      ids.push_back(static_cast<std::int32_t>((target + (i % 2 == 0 ? j : j + 1)) % V));
    }
  }
  return int_tensor({N, kTaught}, ids);
}

class TokenLosses : public DevicesTest {
 protected:
  StepState state;
  void SetUp() override {
    DevicesTest::SetUp();
    state.gradient_scale = 0.25F;
  }
  static void expect_sums(const Tensor& found, const Tensor& expected) {
    const auto got = to_doubles(found.view());
    const auto wanted = to_doubles(expected.view());
    for (const SumIndex index : {kSumLoss, kSumZLoss, kSumWeights, kSumKl}) {
      EXPECT_NEAR(got[index], wanted[index], 1e-4 * std::abs(wanted[index]) + 1e-4) << index;
    }
    for (const SumIndex index : {kSumTokens, kSumCorrect, kSumMarked, kSumStop}) {
      EXPECT_EQ(got[index], wanted[index]) << index;
    }
  }
};

TEST_F(TokenLosses, MatchTheOracle) {
  // A warp's row, a block's, one that a stream brings, and one that is longer.
  for (const DType dtype : compute_types()) {
    for (const auto& [N, V] :
         std::vector<std::array<Dim, 2>>{{7, 13}, {67, 257}, {9, 2049}, {40, 50257}, {3, 64003}}) {
      for (const TokenLoss& loss : kTokenLosses) {
        Problem p(dtype);
        p.in_out(random_tensor(dtype, {N, V}, 1, 3.0))
            .fixed(ids_of_targets(N, V))
            .fixed(bytes_of(state))
            .in_out(filled_tensor(DType::f32, {kSumCount}, 1))
            .fixed(values_of(N, V))
            .fixed(taught_ids(N, V))
            .output(DType::f32, {N, kTargetScoreCount});
        const auto call = [loss](Context& ctx, const Views& v) {
          const LossRows rows = {
              v[0], whole_vocabulary(v[0].shape()[1]), v[1], v[6], 1e-3F, {v[4], v[5], loss}};
          softmax_cross_entropy(ctx, rows, struct_at<StepState>(v[2]), WithGradient::yes, v[3]);
        };
        p.expect_match(call, "loss of values, " + std::to_string(V) + " columns", 4);
        const auto oracle = p.on_oracle(call);
        p.on_each(call, [&](const Results& found) { expect_sums(found[3], oracle[3]); });
      }
    }
  }
}

TEST_F(TokenLosses, OverRanksMatchTheOracle) {
  constexpr Dim kRows = 6;
  for (const DType dtype : compute_types()) {
    for (const Sharding& sharding : {Sharding{257, 129, 2}, Sharding{9000, 2250, 4}}) {
      for (const TokenLoss& loss : kTokenLosses) {
        const Dim width = row_statistics(loss);
        Problem p(dtype);
        for (Dim rank = 0; rank < sharding.ranks; ++rank) {
          p.in_out(random_tensor(dtype, {kRows, sharding.size}, 1 + rank, 3.0))
              .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
        }
        p.fixed(ids_of_targets(kRows, sharding.V))
            .fixed(bytes_of(state))
            .input(poisoned(DType::f32, {sharding.ranks, kRows, width}))
            .fixed(values_of(kRows, sharding.V))
            .fixed(taught_ids(kRows, sharding.V));
        const auto call = [=](Context& ctx, const Views& v) {
          const auto after = static_cast<std::size_t>(2 * sharding.ranks);
          const auto rows_of = [&](Dim rank) -> LossRows {
            return {v[2 * rank], sharding.of(rank),
                    v[after],    {},
                    1e-3F,       {v[after + 3], v[after + 4], loss}};
          };
          for (Dim rank = 0; rank < sharding.ranks; ++rank) {
            softmax_statistics(ctx, rows_of(rank),
                               v[after + 2].slice(rank, 1).reshaped({kRows, width}));
          }
          for (Dim rank = 0; rank < sharding.ranks; ++rank) {
            vocabulary_cross_entropy(ctx, rows_of(rank), v[after + 2],
                                     struct_at<StepState>(v[after + 1]), WithGradient::yes,
                                     v[2 * rank + 1]);
          }
        };
        p.expect_match(call, "shared loss of values", 4);
        const auto oracle = p.on_oracle(call);
        p.on_each(call, [&](const Results& found) { expect_sums(found[1], oracle[1]); });
      }
    }
  }
}

TEST_F(TokenLosses, PairsMatchTheOracle) {
  for (const auto& [B, T] : std::vector<std::array<Dim, 2>>{{1, 5}, {3, 700}, {2, 4096}}) {
    std::vector<std::int32_t> pairs;
    for (Dim b = 0; b < B; ++b) {
      for (Dim t = 0; t < T; ++t) {
        const bool is_padding = t > T - 1 - b;  // behind the last pair of a sample
        pairs.push_back(is_padding ? kNoPair : static_cast<std::int32_t>(t / (2 + 37 * b)));
      }
    }
    Problem p(DType::f32);
    p.input(random_tensor(DType::f32, {B * T, kTargetScoreCount}, 1))
        .fixed(random_tensor(DType::f32, {B * T, 3}, 2))
        .fixed(ids_of_targets(B * T, 100))
        .fixed(int_tensor({B, T}, pairs))
        .fixed(poisoned(DType::f32, {B * T, 1}))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
    const auto call = [](Context& ctx, const Views& v) {
      preference_loss(ctx, {v[0], v[1], 2, v[2], v[3], 0.5F}, v[4], v[5]);
    };
    const auto oracle = p.on_oracle(call);
    const auto weights = to_doubles(oracle[4].view());
    p.on_each(call, [&](const Results& found) {
      expect_sums(found[5], oracle[5]);
      expect_values(found[4].view(), weights, 1e-5);
    });
  }
}

}  // namespace
}  // namespace hyperslab::ops
