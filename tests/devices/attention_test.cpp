// SPDX-License-Identifier: Apache-2.0
#include "attention_problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

class FusedAttention : public DevicesTest, public testing::WithParamInterface<AttentionSize> {};

TEST_P(FusedAttention, MatchesTheOracle) {
  const AttentionSize& size = GetParam();
  for (const DType dtype : compute_types()) {
    const Problem problem = fused_problem(size, dtype);
    const auto oracle = problem.on_oracle(fused_call(size, false));
    const auto check = [&](const Results& found) {
      expect_fused(found, oracle, dtype, size.str());
    };
    problem.on_each(fused_call(size, false), check, {0});
  }
}

TEST_P(FusedAttention, TheGradientOfTheBiasIsTheSumOfWhatIsStored) {
  const AttentionSize& size = GetParam();
  const Problem problem = fused_problem(size, DType::bf16);
  const auto before = to_doubles(random_tensor(DType::f32, {size.layout.packed_width()}, 3).view());
  const auto check = [&](const Results& found) {
    const auto dqkv = to_doubles(found[4].view());
    const auto dbias = to_doubles(found[6].view());
    for (std::size_t column = 0; column < dbias.size(); ++column) {
      double sum = before[column];
      double magnitude = std::abs(sum);
      for (std::size_t i = column; i < dqkv.size(); i += dbias.size()) {
        sum += dqkv[i];
        magnitude += std::abs(dqkv[i]);
      }
      ASSERT_NEAR(dbias[column], sum, 1e-2 * magnitude) << size.str() << " column " << column;
    }
  };
  problem.on_each(fused_call(size, true), check, {0});
}

TEST_P(FusedAttention, DeterministicBackwardRepeatsItsBits) {
  const AttentionSize& size = GetParam();
  for (const DType dtype : compute_types()) {
    const Problem problem = fused_problem(size, dtype);
    const auto call = fused_call(size, true);
    const auto oracle = problem.on_oracle(call);
    for (const Device device : problem.devices()) {
      const auto first = problem.on(device, call);
      const auto second = problem.on(device, call);
      const std::string what = size.str() + " on " + std::string(name_of(device));
      EXPECT_TRUE(same_bits(first[4].view(), second[4].view())) << what;
      EXPECT_TRUE(same_bits(first[6].view(), second[6].view())) << what;
      expect_fused(first, oracle, dtype, what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FusedAttention, testing::ValuesIn(fused_sizes()));
INSTANTIATE_TEST_SUITE_P(Intervals, FusedAttention, testing::ValuesIn(interval_sizes()));

class ReferenceAttention : public DevicesTest {
 protected:
  static void expect_match(const AttentionSize& size, const Dropout& mask) {
    for (const DType dtype : compute_types()) {
      // Scores and probabilities are rounded to 16 bits between the GEMMs.
      reference_problem(size, dtype)
          .expect_match(reference_call(size, mask), size.str(), dtype == DType::f32 ? 1.0 : 3.0);
    }
  }
};

/// Squares whose rows a GPU's warp computes, and ones whose rows a block computes; even and odd.
TEST_F(ReferenceAttention, MatchesTheOracleWithAndWithoutDropout) {
  Dropout quarter;
  quarter.probability = 0.25F;
  for (const AttentionSize& size :
       std::vector<AttentionSize>{{1, 1, {1, 1, 1}},
                                  {1, 1, {1, 1, 8}},
                                  {2, 7, {3, 3, 5}},
                                  {2, 17, {2, 1, 16}},
                                  {2, 33, {4, 2, 17}},
                                  {3, 64, {4, 1, 16}},
                                  {2, 64, {2, 2, 32}},
                                  {1, 131, {2, 2, 32}},
                                  {8, 40, {6, 3, 24}},
                                  {1, 128, {4, 4, 64}},
                                  {1, 65, {2, 1, 288}},
                                  {1, 1096, {1, 1, 8}},
                                  {2, 17, {2, 1, 16}, kNoMask},
                                  {2, 33, {4, 2, 17}, kNoMask},
                                  {2, 64, {2, 2, 32}, kNoMask},
                                  {1, 131, {2, 2, 32}, kNoMask},
                                  {1, 1096, {1, 1, 8}, kNoMask},
                                  {2, 64, {4, 2, 16}, windowed(9)},
                                  {2, 70, {3, 3, 5}, kCausal, 8},
                                  {1, 1100, {1, 1, 16}, windowed(200), 300},
                                  {2, 48, {4, 1, 24}, kCausal, 20, 0.4, 0.7},
                                  {1, 131, {2, 2, 32}, kNoMask, 0, 0, 1.5}}) {
    expect_match(size, {});
    expect_match(size, quarter);
  }
}

TEST_F(ReferenceAttention, ARankDrawsTheMaskOfItsHeads) {
  Dropout mask;
  mask.probability = 0.25F;
  mask.first_head = 3;
  mask.total_heads = 6;
  for (const Dim T : {17, 64}) {
    expect_match({2, T, {2, 1, 16}}, mask);
  }
}

}  // namespace
}  // namespace hyperslab::ops
