// SPDX-License-Identifier: Apache-2.0
// Models that are no causal language models, made of the same blocks on the same stage.
#include <gtest/gtest.h>

#include <cmath>

#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using ops::AttentionMask;
using test::StageHarness;

constexpr Dim kB = 16;
constexpr Dim kT = 8;

ModelSpec tiny() {
  ModelSpec spec = test::small_model(Family::gpt2);
  spec.layers = 2;
  spec.vocabulary = 11;
  spec.context = kT;
  return spec;
}

StageHarness with_mask(AttentionMask::Kind kind) {
  const StageOptions options = test::small_stage(kB, kT, true);
  const auto make = [=] {
    return std::make_unique<Transformer>(tiny(), options, AttentionMask{kind});
  };
  return {make, options, tiny().vocabulary};
}

/// Every target is the next token, which a causal model cannot know: tokens are drawn evenly.
double loss_after_learning_the_next_token(StageHarness& harness, int steps) {
  double recent = 0;
  for (int step = 1; step <= steps; ++step) {
    harness.random_batch(static_cast<std::uint64_t>(step));
    const Batch& batch = harness.stage->batch({});
    for (Dim b = 0; b < kB; ++b) {
      const auto tokens = batch.tokens.slice(b, 1).span<std::int32_t>();
      const auto targets = batch.targets.slice(b, 1).span<std::int32_t>();
      for (std::size_t t = 0; t + 1 < tokens.size(); ++t) targets[t] = tokens[t + 1];
      targets.back() = ops::kIgnoredTarget;
    }
    harness.input.inverse_weights = 1.0F / static_cast<float>(kB * (kT - 1));
    const double loss = harness.train_step(3e-3F);
    recent = step == 1 ? loss : 0.9 * recent + 0.1 * loss;
  }
  return recent;
}

TEST(Encoder, LearnsWhatOnlyLaterTokensShow) {
  StageHarness encoder = with_mask(AttentionMask::Kind::none);
  StageHarness causal = with_mask(AttentionMask::Kind::causal);

  EXPECT_LT(loss_after_learning_the_next_token(encoder, 300), 0.1);
  EXPECT_GT(loss_after_learning_the_next_token(causal, 300), 0.95 * std::log(11.0));
}

}  // namespace
}  // namespace hyperslab::model
