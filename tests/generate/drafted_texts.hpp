// SPDX-License-Identifier: Apache-2.0
// Texts with and without drafts.
#pragma once

#include <gtest/gtest.h>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/generate/log_probabilities.hpp"

namespace hyperslab::generate {

/// The tokens and ends that a listener hears.
class Heard final : public TokenListener {
 public:
  Heard(std::size_t prompts, bool logits)
      : of(prompts), counts(prompts), sums(prompts), logits_(logits) {}
  bool token(std::size_t prompt, const NextToken& next) override {
    EXPECT_FALSE(logits_ && next.logits.empty());
    of[prompt].push_back(next.id);
    if (logits_) sums[prompt] += log_probabilities(next.logits, next.id, 0).log_probability;
    return next.id != last;
  }
  void drafted(std::size_t prompt, const DraftCounts& more) override { counts[prompt] += more; }
  void end(std::size_t /*prompt*/) override { ++ended; }
  [[nodiscard]] bool wants_logits() const override { return logits_; }

  Prompts of;
  std::vector<DraftCounts> counts;
  std::vector<double> sums;  ///< of each text's log-probabilities
  std::int32_t last = -1;    ///< ends a text, which keeps it, as a stop text does
  std::size_t ended = 0;

 private:
  bool logits_;
};

/// Prompts have lengths from one to beyond the context of 40; most of them repeat themselves.
inline Prompts repeating_prompts() {
  Prompts prompts;
  for (const int length : {3, 17, 1, 40, 9, 55, 26, 14}) {
    std::vector<std::int32_t> prompt;
    const int period = 3 + length % 4;
    for (int i = 0; i < length; ++i) prompt.push_back((5 * (i % period) + length) % 60);
    prompts.push_back(prompt);
  }
  return prompts;
}

struct Told {
  Prompts texts;
  GenerateStats stats;
  std::vector<DraftCounts> counts;
  std::vector<double> log_probabilities;
};

inline Told tell(Generator& generator, const SamplingOptions& options, bool logits = false,
                 const Prompts& prompts = repeating_prompts(), std::int32_t last = -1) {
  Heard heard(prompts.size(), logits);
  heard.last = last;
  const GenerateStats stats = generator.generate(prompts, options, heard);
  EXPECT_EQ(heard.ended, prompts.size());
  DraftCounts all;
  for (const DraftCounts& counts : heard.counts) all += counts;
  EXPECT_EQ(stats.drafts.drafted, all.drafted);
  EXPECT_EQ(stats.drafts.accepted, all.accepted);
  EXPECT_LE(stats.drafts.accepted, stats.drafts.drafted);
  EXPECT_TRUE(generator.is_idle());
  return {heard.of, stats, heard.counts, heard.sums};
}

inline SamplingOptions drawn_at(double temperature, std::int64_t tokens) {
  SamplingOptions options;
  options.temperature = temperature;
  options.max_tokens = tokens;
  options.seed = 4;
  return options;
}

}  // namespace hyperslab::generate
