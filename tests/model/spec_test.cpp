// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/spec.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hyperslab::model {
namespace {

/// Two layers of width 8 with two heads of width 4, so that the numbers are easy to follow.
ModelSpec tiny(Family family) {
  ModelSpec spec = preset(family);
  spec.layers = 2;
  spec.width = 8;
  spec.heads = 2;
  spec.kv_heads = family == Family::llama ? 1 : 2;
  spec.ffn_width = 12;
  spec.vocabulary = 10;
  spec.context = 6;
  return spec;
}

/// The difference that a choice makes to a tiny model's parameters.
struct Option {
  std::string name;
  std::function<void(ModelSpec&)> choose;
  std::int64_t more;
};

void expect_differences(const ModelSpec& plain, const std::vector<Option>& options) {
  for (const Option& option : options) {
    ModelSpec spec = plain;
    option.choose(spec);
    EXPECT_EQ(parameter_count(spec) - parameter_count(plain), option.more) << option.name;
  }
}

// A block of gpt2: matrices 4 x 8 x 8 + 2 x 8 x 12 = 448, biases 3 x 8 + 8 + 12 + 8 = 52, two norms
// of 8 weights and 8 biases = 32. Beside blocks: a tied table 10 x 8, positions 6 x 8, a last norm.
TEST(ParameterCount, OfGpt2ByHand) {
  EXPECT_EQ(parameter_count(tiny(Family::gpt2)), 2 * (448 + 52 + 32) + 80 + 48 + 16);
  EXPECT_EQ(matmul_parameter_count(tiny(Family::gpt2)), 2 * 448 + 80);
}

TEST(ParameterCount, OfGpt2WithOptionsByHand) {
  expect_differences(
      tiny(Family::gpt2),
      {{"untied", [](ModelSpec& spec) { spec.tie_embeddings = false; }, 80},
       {"no positions", [](ModelSpec& spec) { spec.position = Position::none; }, -48},
       {"no bias", [](ModelSpec& spec) { spec.bias = false; }, -2 * 52 - 5 * 8},
       {"unbiased queries", [](ModelSpec& spec) { spec.unbiased_qkv = true; }, -2 * 24},
       {"rmsnorm", [](ModelSpec& spec) { spec.norm = ops::NormKind::rmsnorm; }, -5 * 8},
       {"no norm", [](ModelSpec& spec) { spec.norm = ops::NormKind::none; }, -5 * 16},
       {"post", [](ModelSpec& spec) { spec.norm_place = NormPlace::post; }, -16},
       {"gated", [](ModelSpec& spec) { spec.activation = ops::Activation::geglu; },
        2 * (96 + 12)}});
}

// A block of llama: queries and outputs 2 x 8 x 8, keys and values 2 x 8 x 4, three matrices of
// 8 x 12: 128 + 64 + 288 = 480; two norms of 8. Beside blocks: two tables 10 x 8, a last norm.
TEST(ParameterCount, OfLlamaByHand) {
  EXPECT_EQ(parameter_count(tiny(Family::llama)), 2 * (480 + 16) + 160 + 8);
  EXPECT_EQ(matmul_parameter_count(tiny(Family::llama)), 2 * 480 + 80);
}

TEST(ParameterCount, OfLlamaWithOptionsByHand) {
  expect_differences(
      tiny(Family::llama),
      {{"tied", [](ModelSpec& spec) { spec.tie_embeddings = true; }, -80},
       {"biased queries", [](ModelSpec& spec) { spec.qkv_bias = true; }, 2 * (8 + 4 + 4)},
       {"norms of heads", [](ModelSpec& spec) { spec.qk_norm = QkNorm::head; }, 2 * (4 + 4)},
       {"norms of widths", [](ModelSpec& spec) { spec.qk_norm = QkNorm::width; }, 2 * (8 + 4)},
       {"sinks", [](ModelSpec& spec) { spec.scores.sinks = true; }, 2 * 2},
       {"sandwich", [](ModelSpec& spec) { spec.norm_place = NormPlace::sandwich; }, 2 * 2 * 8},
       {"wider heads", [](ModelSpec& spec) { spec.own_head_width = 6; },
        2 * (2 * 8 * 4 + 2 * 8 * 2)},
       {"as many keys as queries", [](ModelSpec& spec) { spec.kv_heads = 2; }, 2 * 64}});
}

// 6 FLOPs of every parameter of a product, and 12 x 2 layers x 8 x 6 tokens of all of attention.
TEST(FlopsPerToken, OfGpt2ByHand) {
  const ModelSpec spec = tiny(Family::gpt2);
  EXPECT_EQ(flops_per_token(spec, 6, false), 6 * 976 + 1152);
  EXPECT_EQ(flops_per_token(spec, 6, true), 6 * 976 + 576);
  EXPECT_EQ(flops_per_token(spec, 6, {.all = 0.25, .windowed = 0.25}), 6 * 976 + 144);
}

}  // namespace
}  // namespace hyperslab::model
