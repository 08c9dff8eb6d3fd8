// SPDX-License-Identifier: Apache-2.0
#include "drafts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hyperslab::generate {
namespace {

using TokenIds = std::vector<std::int32_t>;

TEST(LookUp, ProposesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(look_up(TokenIds{1, 2, 3, 9, 1, 2, 3}, 3), (TokenIds{9, 1, 2}));
  EXPECT_EQ(look_up(TokenIds{5, 2, 3, 8, 9, 1, 2, 3, 7, 6, 1, 2, 3}, 2), (TokenIds{7, 6}))
      << "not 8";
  EXPECT_EQ(look_up(TokenIds{1, 2, 3, 7, 6, 5, 2, 3, 8, 9, 1, 2, 3}, 2), (TokenIds{7, 6}))
      << "three tokens match there, and two in the later place";
  EXPECT_EQ(look_up(TokenIds{1, 2, 7, 1, 2, 8, 1, 2}, 1), (TokenIds{8}))
      << "the latest of equal ones";
}

TEST(LookUp, MatchesOfOneTokenAreNone) {
  EXPECT_EQ(look_up(TokenIds{1, 2, 3, 2}, 4), TokenIds());
  EXPECT_EQ(look_up(TokenIds{1}, 4), TokenIds());
  EXPECT_EQ(look_up(TokenIds{1, 1}, 4), TokenIds());
  EXPECT_EQ(look_up(TokenIds{}, 4), TokenIds());
  EXPECT_EQ(look_up(TokenIds{3, 1, 3, 1}, 0), TokenIds());
}

TEST(LookUp, AShortPeriodGoesOn) {
  EXPECT_EQ(look_up(TokenIds{9, 1, 2, 1, 2}, 5), (TokenIds{1, 2, 1, 2, 1}));
  EXPECT_EQ(look_up(TokenIds{7, 7, 7}, 4), (TokenIds{7, 7, 7, 7}));
}

TEST(LookUp, MatchesEndAtEightTokens) {
  TokenIds text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 70, 2, 3, 4, 5, 6, 7, 8, 9, 80};
  text.insert(text.end(), {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(look_up(text, 1), (TokenIds{80})) << "nine match before 70, eight later";
}

TEST(DraftLength, FollowsWhatHolds) {
  DraftLength length(8);
  EXPECT_EQ(length.next(), 8);
  length.record(8, 3);
  EXPECT_EQ(length.next(), 4);
  length.record(4, 4);
  EXPECT_EQ(length.next(), 8);
  length.record(8, 8);
  EXPECT_EQ(length.next(), 8) << "not beyond the most";
  length.record(8, 0);
  EXPECT_EQ(length.next(), 1);
  length.record(1, 1);
  EXPECT_EQ(length.next(), 2);
}

TEST(DraftLength, RestsLongerAfterEachFailureOfASingleGuess) {
  DraftLength length(1);
  for (const int rests : {1, 2, 4, 8, 16, 16}) {
    EXPECT_EQ(length.next(), 1);
    length.record(1, 0);
    for (int pass = 0; pass < rests; ++pass) EXPECT_EQ(length.next(), 0) << rests;
  }
  EXPECT_EQ(length.next(), 1);
  length.record(1, 1);
  EXPECT_EQ(length.next(), 1);
  length.record(1, 0);
  EXPECT_EQ(length.next(), 0);
  EXPECT_EQ(length.next(), 1) << "one pass again";
}

constexpr std::int64_t kV = 5;

/// Logits of a model after two tokens: `which` is the model, the result has cut-off tails.
std::vector<float> logits_after(int which, std::int32_t before, std::int32_t last) {
  std::vector<float> logits;
  for (int id = 0; id < kV; ++id) {
    logits.push_back(static_cast<float>(2 * std::sin(1.7 * id * (which + 1) + before + 3 * last)));
  }
  return logits;
}

/// The share of each token that a sampler of these options gives.
std::vector<double> shares(const SamplingOptions& options, const std::vector<float>& logits) {
  ops::TokenChooser chooser;
  Sampler sampler(options, 0, kV);
  const auto weights = chooser.weigh(logits, sampler.choice());
  double total = 0;
  for (const double weight : weights) total += weight;
  std::vector<double> found;
  for (const double weight : weights) found.push_back(weight / total);
  return found;
}

/// Three tokens of stream `number`: two drafts by model 1, verified by model 0. `accepts_all`: a
/// fault.
TokenIds drafted_text(const SamplingOptions& options, std::size_t number, bool accepts_all) {
  Sampler sampler(options, number, kV);
  TokenIds text = {0, 0};
  TokenIds drafts;
  std::vector<std::vector<double>> weights(2);
  TokenIds seen = text;
  for (auto& of : weights) {
    const auto logits = logits_after(1, seen[seen.size() - 2], seen.back());
    drafts.push_back(sampler.draft(logits, drafts, of));
    seen.push_back(drafts.back());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto logits = logits_after(0, text[text.size() - 2], text.back());
    const bool holds =
        i < 2 && std::equal(drafts.begin(), drafts.begin() + static_cast<int>(i), text.begin() + 2);
    const std::int32_t token =
        holds ? accepts_all ? drafts[i] : sampler.next(logits, {drafts[i], weights[i]})
              : sampler.next(logits);
    text.push_back(token);
  }
  return {text.begin() + 2, text.end()};
}

struct ChiSquare {
  double sum = 0;
  int cells = 0;
  double rest = 0;  ///< texts of cells too rare to count
  double rest_expected = 0;
  /// Exceeded by one in a million of draws that are as they should be.
  [[nodiscard]] double bound() const { return cells + 7.0 * std::sqrt(2.0 * cells) + 14; }
};

ChiSquare chi_square_of_texts(const SamplingOptions& options, bool accepts_all) {
  constexpr int kTexts = 30000;
  std::vector<double> counts(kV * kV * kV);
  for (int i = 0; i < kTexts; ++i) {
    const TokenIds text = drafted_text(options, static_cast<std::size_t>(i), accepts_all);
    ++counts[static_cast<std::size_t>((text[0] * kV + text[1]) * kV + text[2])];
  }
  ChiSquare found;
  for (std::int32_t a = 0; a < kV; ++a) {
    const auto first = shares(options, logits_after(0, 0, 0));
    for (std::int32_t b = 0; b < kV; ++b) {
      const auto second = shares(options, logits_after(0, 0, a));
      for (std::int32_t c = 0; c < kV; ++c) {
        const auto third = shares(options, logits_after(0, a, b));
        const auto at = [](const auto& of, std::int32_t id) {
          return of[static_cast<std::size_t>(id)];
        };
        const double expected = kTexts * at(first, a) * at(second, b) * at(third, c);
        const double count = counts[static_cast<std::size_t>((a * kV + b) * kV + c)];
        if (expected < 5) {
          found.rest += count;
          found.rest_expected += expected;
          continue;
        }
        found.sum += std::pow(count - expected, 2) / expected;
        ++found.cells;
      }
    }
  }
  return found;
}

TEST(DraftedSampler, DraftedTokensHaveTheModelsDistribution) {
  std::vector<SamplingOptions> all(4);
  all[1].temperature = 0.7;
  all[1].top_k = 4;
  all[2].top_p = 0.8;
  all[3].temperature = 1.5;
  all[3].min_p = 0.2;
  for (const SamplingOptions& options : all) {
    const ChiSquare found = chi_square_of_texts(options, false);
    EXPECT_GE(found.cells, 8);
    EXPECT_LT(found.rest, found.rest_expected + 5 * std::sqrt(found.rest_expected) + 1e-9);
    EXPECT_LT(found.sum, found.bound()) << found.cells;
  }
  const ChiSquare fault = chi_square_of_texts({}, true);
  EXPECT_GT(fault.sum, 10 * fault.bound()) << "drafts that are always accepted are found out";
}

TEST(DraftedSampler, DraftsOfTheSameDistributionAreAllAccepted) {
  SamplingOptions options;
  options.repetition_penalty = 1.4;
  options.top_p = 0.9;
  Sampler sampler(options, 3, kV);
  sampler.see(TokenIds{1});
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<float> logits = logits_after(0, i % 3, i % 5);
    std::vector<double> weights;
    const std::int32_t draft = sampler.draft(logits, {}, weights);
    accepted += sampler.next(logits, {draft, weights}) == draft ? 1 : 0;
  }
  EXPECT_EQ(accepted, 300);
}

TEST(DraftedSampler, ADraftThatIsNoDrawLeavesTheTokenAlone) {
  SamplingOptions options;
  Sampler plain(options, 3, kV);
  Sampler drafted(options, 3, kV);
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> logits = logits_after(0, i % 3, i % 5);
    EXPECT_EQ(drafted.next(logits, {i % 5, {}}), plain.next(logits));
  }
}

TEST(DraftedSampler, ThePenaltyCountsDraftsBeforeADraft) {
  SamplingOptions options;
  options.repetition_penalty = 1e6;
  options.temperature = 0;
  Sampler sampler(options, 0, kV);
  sampler.see(TokenIds{4});
  const std::vector<float> logits = {1, 2, 3, 4, 5};
  std::vector<double> weights;
  EXPECT_EQ(sampler.draft(logits, {}, weights), 3) << "the text has 4";
  EXPECT_EQ(sampler.draft(logits, TokenIds{3, 3}, weights), 2);
  EXPECT_EQ(weights, (std::vector<double>{0, 0, 1, 0, 0}));
  const std::vector<float> broken(kV, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(sampler.draft(broken, {}, weights), -1);
}

}  // namespace
}  // namespace hyperslab::generate
