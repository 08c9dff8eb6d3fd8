// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/sample.hpp"

#include <algorithm>
#include <limits>

#include "ops_test.hpp"
#include "sample_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Sample : public OpsTest {
 protected:
  std::vector<std::int32_t> sampled(CView logits, Dim V, const std::vector<TokenChoice>& choices) {
    const Tensor bytes = bytes_of_choices(choices);
    Tensor index(Device::cpu, DType::i32, {static_cast<Dim>(choices.size())});
    sample(ctx, logits, V, bytes.view(), index.view());
    const auto* found = index.view().data<std::int32_t>();
    return {found, found + choices.size()};
  }
};

TEST_F(Sample, RowsAreChosenOneByOneFromTheFirstLogits) {
  constexpr Dim kV = 37;
  const std::vector<TokenChoice> choices = token_choices(5);
  const Tensor logits = random_tensor(DType::f32, {std::ssize(choices), 40}, 1, 3);
  const float* row = logits.view().data<float>();
  std::vector<std::int32_t> expected;
  TokenChooser chooser;
  for (const TokenChoice& choice : choices) {
    expected.push_back(chooser.choose({row, kV}, choice));
    row += 40;
  }

  EXPECT_EQ(sampled(logits.view(), kV, choices), expected);
  EXPECT_GT(*std::ranges::max_element(expected), 0);
}

TEST_F(Sample, ADrawTakesItsPartOfTheMassInTheOrderOfTokens) {
  const Tensor logits =
      tensor_of(DType::f32, {1, 3}, {std::log(2.0), std::log(5.0), std::log(3.0)});
  const auto token_at = [&](double part) {
    TokenChoice choice;
    choice.draw = static_cast<std::uint64_t>(part * 0x1p64);
    return sampled(logits.view(), 3, {choice}).front();
  };
  EXPECT_EQ(token_at(0), 0);
  EXPECT_EQ(token_at(0.1999), 0);
  EXPECT_EQ(token_at(0.2001), 1);
  EXPECT_EQ(token_at(0.6999), 1);
  EXPECT_EQ(token_at(0.7001), 2);
  EXPECT_EQ(token_at(0.9999), 2);
}

TEST_F(Sample, TopPStopsAtTheTokenThatHoldsExactlyItsMass) {
  const Tensor logits = tensor_of(DType::f32, {1, 2}, {1, 1});
  const auto token_of_draw = [&](double top_p, double part) {
    TokenChoice choice;
    choice.top_p = top_p;
    choice.draw = static_cast<std::uint64_t>(part * 0x1p64);
    return sampled(logits.view(), 2, {choice}).front();
  };
  EXPECT_EQ(token_of_draw(0.5, 0.25), 0);
  EXPECT_EQ(token_of_draw(0.5, 0.75), 0);
  EXPECT_EQ(token_of_draw(0.51, 0.25), 0);
  EXPECT_EQ(token_of_draw(0.51, 0.75), 1);
}

TEST_F(Sample, LogitsThatAreNoNumbersGiveNoToken) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor logits = tensor_of(DType::f32, {4, 2},
                                  {0, std::numeric_limits<double>::quiet_NaN(), kInfinity, 0,
                                   -kInfinity, -kInfinity, -kInfinity, 1});
  EXPECT_EQ(sampled(logits.view(), 2, std::vector<TokenChoice>(4)),
            (std::vector<std::int32_t>{-1, -1, -1, 1}));
}

TEST_F(Sample, OperandsOfOtherSizesAreNamed) {
  const Tensor logits = random_tensor(DType::f32, {2, 4}, 1);
  expect_error_naming("sample choices", [&] { (void)sampled(logits.view(), 4, {{}}); });
  expect_error_naming("fewer columns", [&] { (void)sampled(logits.view(), 5, {{}, {}}); });
}

}  // namespace
}  // namespace hyperslab::ops
