// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_precision_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class PrecisionRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(PrecisionRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, PrecisionRules, testing::ValuesIn(broken_precision_rules()));

// The rule is of precision.fp8_min_width, which no one gave.
TEST(Precision, ARefusalPointsAtTheOverrideThatAskedForEightBits) {
  EXPECT_THAT(refusal(kValid, {"precision.compute=bf16", "precision.gemm=fp8_tensor"}),
              testing::StartsWith("--set precision.gemm=fp8_tensor: no layer of the blocks has"));
}

TEST(Precision, KeysOfEightBitProductsAreRead) {
  const auto config = read(kValid, {"precision.gemm=fp8_row", "precision.fp8_min_width=32",
                                    "precision.fp8_keep_first=1"});
  const nn::Fp8Config fp8 = config.precision.fp8();

  EXPECT_EQ(fp8.recipe, nn::Fp8Recipe::row);
  EXPECT_EQ(fp8.min_width, 32);
  EXPECT_FALSE(fp8.of_block(0, 2));
  EXPECT_TRUE(fp8.of_block(1, 2));
  EXPECT_FALSE(read(kValid).precision.fp8());
  EXPECT_EQ(read(to_yaml(config)).precision, config.precision);
}

TEST(Precision, EveryRecipeOfEightBitProductsHasAName) {
  const auto recipe = [](const char* gemm) {
    return read(kValid, {std::string("precision.gemm=") + gemm, "precision.fp8_min_width=32"})
        .precision.fp8()
        .recipe;
  };
  EXPECT_EQ(recipe("fp8_tensor"), nn::Fp8Recipe::tensor);
  EXPECT_EQ(recipe("fp8_row"), nn::Fp8Recipe::row);
  EXPECT_EQ(recipe("fp8_block"), nn::Fp8Recipe::block);
}

TEST(Precision, BlocksThatAreKeptNeedEightBitProducts) {
  EXPECT_THAT(refusal(kValid, {"precision.fp8_keep_last=1"}),
              testing::HasSubstr("no block multiplies in 8-bit floats"));
}

}  // namespace
}  // namespace hyperslab::deck::test
