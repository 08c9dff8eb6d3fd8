// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuLoss : public GpuTest {
 protected:
  StepState state;
  void SetUp() override {
    GpuTest::SetUp();
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
  Problem problem(DType dtype, Tensor logits, Tensor ids) const {
    Problem out(dtype);
    out.in_out(std::move(logits))
        .fixed(std::move(ids))
        .fixed(bytes_of(state))
        .in_out(filled_tensor(DType::f32, {kSumCount}, 1));
    return out;
  }
};

Problem::Call loss_call(WithGradient gradient) {
  return [gradient](Context& ctx, const Problem::Views& v) {
    softmax_cross_entropy(ctx, v[0], v[1], struct_at<StepState>(v[2]), gradient, v[3]);
  };
}

double place(const Tensor& sums, SumIndex index) {
  return to_doubles(sums.view())[static_cast<std::size_t>(index)];
}

TEST_F(GpuLoss, MatchesTheOracle) {
  // A warp's row, a block's, rows that fit shared memory (once, twice, not), odd widths.
  for (const DType dtype : kGpuTypes) {
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
      const Problem p = problem(dtype, random_tensor(dtype, {N, V}, 1, 3.0), targets(N, V));
      p.expect_match(call, "loss of " + std::to_string(V), V == 1 ? 1e30 : 2);
      const auto found = p.on_gpu(call);
      const auto oracle = p.on_oracle(call);
      for (const SumIndex index : {kSumTokens, kSumCorrect, kSumNormSquared, kSumStop}) {
        EXPECT_EQ(place(found[3], index), place(oracle[3], index)) << V << " place " << index;
      }
      const double loss = place(oracle[3], kSumLoss);
      EXPECT_NEAR(place(found[3], kSumLoss), loss, 1e-5 * loss) << V;
    }
  }
}

TEST_F(GpuLoss, WithoutGradientNothingIsWritten) {
  for (const DType dtype : kGpuTypes) {
    for (const Dim V : {100, 3001}) {
      const Tensor logits = random_tensor(dtype, {8, V}, 1, 3.0);
      const Problem p = problem(dtype, logits.clone(), targets(8, V));
      for (const Dim offset : {0, 1}) {
        const auto found = p.on_gpu(loss_call(WithGradient::no), offset);
        EXPECT_TRUE(same_bits(found[0].view(), logits.view()));
      }
      p.expect_match(loss_call(WithGradient::no), "loss alone");
    }
  }
}

TEST_F(GpuLoss, OfEqualLargestLogitsTheFirstIsTheAnswer) {
  for (const Dim V : {40, 5000}) {
    for (const Dim target : {Dim{3}, V / 2, V - 1}) {
      for (const Dim other : {Dim{3}, V / 2, V - 1, V / 2 + 1}) {
        Tensor logits = filled_tensor(DType::f32, {1, V}, -1);
        logits.view().data<float>()[target] = 2;
        logits.view().data<float>()[other] = 2;
        const Problem p = problem(DType::f32, std::move(logits),
                                  int_tensor({1}, {static_cast<std::int32_t>(target)}));
        for (const Dim offset : {0, 1}) {
          const auto found = p.on_gpu(loss_call(WithGradient::yes), offset);
          EXPECT_EQ(place(found[3], kSumCorrect), 1 + (target <= other ? 1 : 0))
              << V << ": " << target << ", " << other;
        }
      }
    }
  }
}

TEST_F(GpuLoss, LogitsOfMinusInfinityHaveNoPart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Dim V : {300, 4000}) {
    auto values = to_doubles(random_tensor(DType::f32, {2, V}, 1).view());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 100 != 5) values[i] = -kInfinity;
    }
    const Problem p =
        problem(DType::f32, tensor_of(DType::f32, {2, V}, values), int_tensor({2}, {5, 205}));
    p.expect_match(loss_call(WithGradient::yes), "masked logits");
  }
}

TEST_F(GpuLoss, ATargetOutsideTheVocabularyGivesALossThatIsNotANumber) {
  const Problem p =
      problem(DType::f32, random_tensor(DType::f32, {2, 50}, 1), int_tensor({2}, {7, 50}));
  const auto found = p.on_gpu(loss_call(WithGradient::yes));
  EXPECT_TRUE(std::isnan(place(found[3], kSumLoss)));
}

TEST_F(GpuLoss, ManyRows) {
  const auto call = loss_call(WithGradient::yes);
  problem(DType::bf16, random_tensor(DType::bf16, {5003, 67}, 1, 3.0), targets(5003, 67))
      .expect_match(call, "many rows");
}

}  // namespace
}  // namespace hyperslab::ops
