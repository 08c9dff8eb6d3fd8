// SPDX-License-Identifier: Apache-2.0
// Texts of unequal lengths, and what a generator makes of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "hyperslab/generate/generate.hpp"

namespace hyperslab::generate {

class HeardIds final : public TokenListener {
 public:
  HeardIds(std::size_t prompts, bool logits) : of(prompts), ended(prompts), logits_(logits) {}
  bool token(std::size_t prompt, const NextToken& next) override {
    of[prompt].push_back(next.id);
    EXPECT_EQ(ended[prompt], 0);
    EXPECT_EQ(logits_, !next.logits.empty());
    return true;
  }
  void end(std::size_t prompt) override { ++ended[prompt]; }
  [[nodiscard]] bool wants_logits() const override { return logits_; }

  Prompts of;
  std::vector<int> ended;

 private:
  bool logits_;
};

/// Lengths from one to beyond the context of 12.
inline Prompts unequal_prompts() {
  Prompts prompts;
  for (const int length : {3, 1, 12, 7, 3, 20, 11, 1, 5, 30, 13, 2}) {
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < length; ++i) {
      prompt.push_back((7 * length + 3 * i + static_cast<int>(prompts.size())) % 40);
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

inline SamplingOptions options_of(double temperature, std::int64_t tokens) {
  SamplingOptions options;
  options.temperature = temperature;
  options.max_tokens = tokens;
  options.seed = 4;
  options.stop_tokens = {17};  // some texts end early
  options.repetition_penalty = temperature == 0 ? 1 : 1.2;
  return options;
}

inline Prompts together(Generator& generator, const SamplingOptions& options, bool logits,
                        const Prompts& prompts = unequal_prompts()) {
  HeardIds ids(prompts.size(), logits);
  const GenerateStats stats = generator.generate(prompts, options, ids);
  std::int64_t tokens = 0;
  std::int64_t read = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(ids.ended[i], 1);
    read += std::min(std::ssize(prompts[i]), generator.context());
    tokens += std::ssize(ids.of[i]) - (options.stops_at(ids.of[i].back()) ? 1 : 0);
  }
  EXPECT_EQ(stats.tokens, tokens);
  EXPECT_EQ(stats.prompt_tokens, read);
  EXPECT_TRUE(generator.is_idle());
  return ids.of;
}

}  // namespace hyperslab::generate
