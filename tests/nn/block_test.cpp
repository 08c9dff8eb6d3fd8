// SPDX-License-Identifier: Apache-2.0
// Drawn lists of branches: gradients by finite differences, halves and repeated passes.
#include "hyperslab/nn/block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "nn/block_harness.hpp"
#include "ops/finite_difference.hpp"
#include "ops/ops_test.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;
constexpr double kStep = 3e-4;
/// Relative to the largest element, and for the rounding of a value of about 100 over a step.
double tolerance_of(const std::vector<double>& gradient) {
  double largest = 1e-8;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  return 1e-6 + 1e-9 / largest;
}

using BlockTest = OpsTest;

TEST_F(BlockTest, GradientsOfDrawnListsAreThoseOfDifferences) {
  std::mt19937 draw(5);
  for (int i = 0; i < 24; ++i) {
    BlockConfig config = drawn_config(i);
    config.experts.active = config.experts.count;  // a choice jumps; its gradient has tests of ops
    config.experts.active_groups = config.experts.groups;
    const BlockList list = drawn_list(draw);
    const std::string text = std::to_string(i) + ": " + text_of(list);
    BlockHarness block(config, list, i % 2 == 1);
    const Tensor weights = random_tensor(DType::f64, kStream, 17);
    const auto value = [&] {
      const double output = inner_product(weights.view(), block.forward(ctx).view());
      return output + block.router_losses();
    };
    (void)value();
    const Tensor d = block.backward(ctx, weights.view());
    std::vector<std::pair<View, std::vector<double>>> gradients;
    for (const param::Param& param : block.store().params()) {
      gradients.emplace_back(param.value, to_doubles(param.gradient));
    }
    expect_gradient(text + "input", block.input(), d.view(), value,
                    tolerance_of(to_doubles(d.view())), kStep);
    for (std::size_t p = 0; p < gradients.size(); ++p) {
      const auto& [parameter, found] = gradients[p];
      const Tensor gradient = tensor_of(DType::f64, parameter.shape(), found);
      expect_gradient(text + block.store().params()[p].name, parameter, gradient.view(), value,
                      tolerance_of(found), kStep);
      if (HasFatalFailure()) return;
    }
  }
}

/// The halves of a split backward pass together give what the whole one gives.
TEST_F(BlockTest, SplitBackwardOfDrawnListsEqualsTheWholeOne) {
  std::mt19937 draw(6);
  for (int i = 0; i < 24; ++i) {
    BlockConfig config = small_config();
    if (i % 2 == 1) config.adapter = {.rank = 2, .alpha = 3};
    const BlockList list = drawn_list(draw);
    BlockHarness whole(config, list, i % 2 == 1);
    config.split_backward = true;
    BlockHarness split(config, list, i % 2 == 1);
    const Tensor weights = random_tensor(DType::f64, kStream, 18);
    (void)whole.forward(ctx);
    (void)split.forward(ctx);
    const Tensor d = whole.backward(ctx, weights.view());
    const Tensor d_split = split.backward(ctx, weights.view(), BackwardPart::input);
    (void)split.backward(ctx, d_split.view(), BackwardPart::weight);
    expect_values(d_split.view(), to_doubles(d.view()), 1e-12);
    for (std::size_t p = 0; p < whole.store().params().size(); ++p) {
      const param::Param& param = split.store().params()[p];
      SCOPED_TRACE(text_of(list) + param.name);
      expect_values(param.gradient, to_doubles(whole.store().params()[p].gradient), 1e-12);
    }
  }
}

/// A pass that is repeated before backward leaves the slot as the first pass did.
TEST_F(BlockTest, RepeatedPassesOfDrawnListsKeepGradients) {
  std::mt19937 draw(7);
  for (int i = 0; i < 24; ++i) {
    BlockConfig config = small_config();
    config.dropout = i % 2 == 1 ? 0.3F : 0;
    config.experts.balance_weight = 0.5;
    if (i % 4 >= 2) config.adapter = {.rank = 2, .alpha = 3};
    const BlockList list = drawn_list(draw);
    BlockHarness block(config, list);
    const Tensor weights = random_tensor(DType::f64, kStream, 19);
    (void)block.forward(ctx);
    const Tensor d = block.backward(ctx, weights.view());
    const double losses = block.router_losses();
    (void)block.forward(ctx, true);
    EXPECT_EQ(block.router_losses(), losses);
    const Tensor again = block.backward(ctx, weights.view());
    SCOPED_TRACE(text_of(list));
    EXPECT_EQ(to_doubles(again.view()), to_doubles(d.view()));
  }
}

TEST_F(BlockTest, GradientsOfDrawnListsAddUpOverMicrobatches) {
  std::mt19937 draw(8);
  for (int i = 0; i < 24; ++i) {
    const BlockList list = drawn_list(draw);
    BlockHarness block(drawn_config(i), list, i % 2 == 1);
    const Tensor weights = random_tensor(DType::f64, kStream, 20);
    std::vector<std::vector<double>> once;
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      (void)block.forward(ctx);
      (void)block.backward(ctx, weights.view(), BackwardPart::both, accumulate);
      for (std::size_t p = 0; p < block.store().params().size(); ++p) {
        const param::Param& param = block.store().params()[p];
        SCOPED_TRACE(text_of(list) + param.name);
        if (accumulate == Accumulate::no) {
          once.push_back(to_doubles(param.gradient));
          continue;
        }
        std::vector<double> twice = once[p];
        for (double& value : twice) value *= 2;
        expect_values(param.gradient, twice, 1e-10);
      }
    }
  }
}

TEST_F(BlockTest, DrawnListsContinueTextsAsAWholePassReadsThem) {
  std::mt19937 draw(9);
  for (int i = 0; i < 24; ++i) {
    BlockConfig config = drawn_config(i);
    config.dropout = 0;
    config.drop_path = 0;
    const BlockList list = drawn_list(draw);
    SCOPED_TRACE(text_of(list));
    BlockHarness block(config, list);
    const Tensor whole = block.forward(ctx);
    expect_values(block.forward_by_tokens(ctx).view(), to_doubles(whole.view()), 1e-10);
  }
}

TEST_F(BlockTest, CountsOfDrawnListsAreTheParameters) {
  std::mt19937 draw(10);
  for (int i = 0; i < 24; ++i) {
    const BlockConfig config = drawn_config(i);
    const BlockList list = drawn_list(draw);
    std::int64_t counted = 0;
    for (const BranchSpec& branch : list) {
      const SublayerCounts counts = branch.sublayer->count(config, kTokens);
      counted += counts.matrices + counts.idle + counts.vectors;
    }
    const BlockHarness block(config, list);
    std::int64_t held = 0;
    for (const param::Param& param : block.store().params()) {
      const bool is_counted = param.name.find("norm") == std::string::npos &&
                              param.name.find("lora") == std::string::npos;
      if (is_counted) held += param.value.numel();
    }
    EXPECT_EQ(counted, held) << text_of(list);
  }
}

TEST_F(BlockTest, GivesSecondSublayersNamesAndMasksOfTheirOwn) {
  BlockConfig config = small_config();
  const BlockList list(3, {.sublayer = &kMlp, .norm = NormKind::rmsnorm});
  const BlockHarness block(config, list);
  std::vector<std::string> names;
  for (const param::Param& param : block.store().params()) names.push_back(param.name);
  for (const char* name : {"blocks.1.mlp.up.weight", "blocks.1.mlp2.up.weight",
                           "blocks.1.mlp3.down.bias", "blocks.1.norm3.weight"}) {
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
  }
  EXPECT_NE(dropout_site(1, 0, 2), dropout_site(1, 0));
  EXPECT_NE(adapter_site(1, 2, 1), adapter_site(1, 2));
}

TEST_F(BlockTest, RefusesNormsOfOutputsThatAreAddedAtOnce) {
  param::ParamStore store;
  store.begin_unit();
  const BlockList list = {{.sublayer = &kAttention, .with_next = true},
                          {.sublayer = &kMlp, .output_norm = NormKind::rmsnorm}};
  EXPECT_THROW(Block(store, "blocks.0", small_config(), 0, list), Error);
  EXPECT_THROW(
      Block(store, "blocks.0", small_config(), 0, {{.sublayer = &kMlp, .with_next = true}}), Error);
}

}  // namespace
}  // namespace hyperslab::nn
