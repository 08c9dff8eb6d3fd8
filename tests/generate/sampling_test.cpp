// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "hyperslab/core/error.hpp"

namespace hyperslab::test {
namespace {

using generate::Sampler;
using generate::SamplingOptions;
using Logits = std::vector<float>;

const Logits kLogits = {0.5F, -1.0F, 2.0F, 0.0F, 1.25F, -3.0F, 0.5F, 1.0F};

std::vector<std::int64_t> counts(const SamplingOptions& options, const Logits& logits, int draws,
                                 const std::vector<std::int32_t>& seen = {}) {
  Sampler sampler(options, 0, static_cast<std::int64_t>(logits.size()));
  sampler.see(seen);
  std::vector<std::int64_t> out(logits.size());
  for (int i = 0; i < draws; ++i) ++out[static_cast<std::size_t>(sampler.next(logits))];
  return out;
}

std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> out;
  double total = 0;
  for (const double x : logits) total += out.emplace_back(std::exp(x));
  for (double& p : out) p /= total;
  return out;
}

/// Chi square of counts against probabilities; ids of probability 0 must not occur.
double chi_square(const std::vector<std::int64_t>& counts,
                  const std::vector<double>& probabilities) {
  double draws = 0;
  for (const auto count : counts) draws += static_cast<double>(count);
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    EXPECT_TRUE(probabilities[i] > 0 || counts[i] == 0) << i;
    if (probabilities[i] > 0)
      sum += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
  }
  return sum;
}

constexpr int kDraws = 40000;
constexpr double kChiSquare7 = 24.3;  // of 7 degrees of freedom, exceeded by 1 in 1000

TEST(Sampler, DrawsFromTheSoftmaxOfTheTemperature) {
  for (const double temperature : {1.0, 0.5, 3.0}) {
    SamplingOptions options;
    options.temperature = temperature;
    std::vector<double> scaled;
    scaled.reserve(kLogits.size());
    for (const float x : kLogits) scaled.push_back(x / temperature);

    EXPECT_LT(chi_square(counts(options, kLogits, kDraws), softmax(scaled)), kChiSquare7);
  }
}

TEST(Sampler, OtherProbabilitiesAreReported) {
  std::vector<double> flat(kLogits.size(), 1.0 / static_cast<double>(kLogits.size()));

  EXPECT_GT(chi_square(counts({}, kLogits, kDraws), flat), 1000);
}

TEST(Sampler, TopKDrawsAmongTheKLikeliestOfEqualOnesTheFirst) {
  const std::vector<std::size_t> by_rank = {2, 4, 7, 0, 6, 3, 1, 5};  // 0 and 6 are equal
  for (std::size_t k = 1; k <= kLogits.size() + 1; ++k) {
    SamplingOptions options;
    options.top_k = static_cast<std::int64_t>(k);
    std::vector<double> logits(kLogits.size(), -std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < std::min(k, by_rank.size()); ++i) {
      logits[by_rank[i]] = kLogits[by_rank[i]];
    }

    EXPECT_LT(chi_square(counts(options, kLogits, kDraws), softmax(logits)), kChiSquare7) << k;
  }
}

TEST(Sampler, TopPDrawsFromTheSmallestSetThatHoldsTheMass) {
  const Logits logits = {std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
  const std::map<double, std::set<std::size_t>> sets = {
      {1e-9, {1}},       {0.39, {1}},       {0.41, {1, 2}},       {0.69, {1, 2}},
      {0.71, {1, 2, 3}}, {0.89, {1, 2, 3}}, {0.91, {0, 1, 2, 3}}, {1.0, {0, 1, 2, 3}}};
  for (const auto& [top_p, set] : sets) {
    SamplingOptions options;
    options.top_p = top_p;
    const auto found = counts(options, logits, 5000);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      EXPECT_EQ(found[i] > 0, set.count(i) > 0) << top_p << " " << i;
    }
  }
}

TEST(Sampler, TopPCountsTheMassOfTheTopK) {
  const Logits logits = {std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
  SamplingOptions options;
  options.top_k = 2;
  options.top_p = 0.5;  // 0.4 of 0.7 is enough

  EXPECT_EQ(counts(options, logits, 1000)[1], 1000);
}

TEST(Sampler, MinPKeepsTokensOfThatPartOfTheLikeliest) {
  const Logits logits = {std::log(0.1F), std::log(0.4F), std::log(0.3F), std::log(0.2F)};
  struct Case {
    double min_p;
    double temperature;
    std::set<std::size_t> kept;
  };
  const std::vector<Case> cases = {
      {0, 1, {0, 1, 2, 3}}, {0.24, 1, {0, 1, 2, 3}}, {0.26, 1, {1, 2, 3}}, {0.49, 1, {1, 2, 3}},
      {0.51, 1, {1, 2}},    {0.76, 1, {1}},          {1, 1, {1}},          {0.5, 0.5, {1, 2}}};
  for (const auto& [min_p, temperature, kept] : cases) {
    SamplingOptions options;
    options.min_p = min_p;
    options.temperature = temperature;
    const auto found = counts(options, logits, 5000);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      EXPECT_EQ(found[i] > 0, kept.count(i) > 0) << min_p << " " << temperature << " " << i;
    }
  }
}

TEST(Sampler, MinPDrawsFromTheSoftmaxOfWhatIsKept) {
  SamplingOptions options;
  options.min_p = 0.3;
  std::vector<double> expected(kLogits.size());
  double total = 0;
  for (std::size_t i = 0; i < kLogits.size(); ++i) {
    const double weight = std::exp(kLogits[i] - 2.0);  // the largest is 2
    if (weight >= options.min_p) total += expected[i] = weight;
  }
  for (double& p : expected) p /= total;

  EXPECT_LT(chi_square(counts(options, kLogits, kDraws), expected), kChiSquare7);
}

TEST(Sampler, LargeVocabulariesAgreeWithASortedNucleus) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 3);
  Logits logits(5003);
  for (float& x : logits) x = normal(random);
  std::vector<std::size_t> sorted(logits.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  std::ranges::sort(sorted, [&](auto a, auto b) { return logits[a] > logits[b]; });
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  for (const double top_p : {0.2, 0.5, 0.9, 0.99}) {
    std::set<std::int32_t> nucleus;
    double mass = 0;
    for (std::size_t i = 0; mass < top_p * total; ++i) {
      mass += std::exp(static_cast<double>(logits[sorted[i]]));
      nucleus.insert(static_cast<std::int32_t>(sorted[i]));
    }
    SamplingOptions options;
    options.top_p = top_p;
    Sampler sampler(options, 0, static_cast<std::int64_t>(logits.size()));
    std::set<std::int32_t> found;
    for (int i = 0; i < 2000; ++i) found.insert(sampler.next(logits));

    EXPECT_TRUE(std::ranges::includes(nucleus, found)) << top_p;
    EXPECT_GT(found.size(), std::min<std::size_t>(nucleus.size(), 500) / 3) << top_p;
  }
}

TEST(Sampler, PenaltyDividesPositiveAndMultipliesNegativeLogitsOfSeenTokens) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  std::vector<double> penalized(kLogits.begin(), kLogits.end());
  penalized[2] = 1.0;    // 2 / 2
  penalized[1] = -2.0;   // -1 * 2
  penalized[4] = 0.625;  // 1.25 / 2

  const auto found = counts(options, kLogits, kDraws, {2, 1, 4, 2, 2});

  EXPECT_LT(chi_square(found, softmax(penalized)), kChiSquare7);
}

TEST(Sampler, PenaltyActsOnTheLikeliestToken) {
  SamplingOptions options;
  options.temperature = 0;
  options.repetition_penalty = 4;
  Sampler sampler(options, 0, 8);
  std::vector<std::int32_t> text;
  for (int i = 0; i < 4; ++i) {
    text.push_back(sampler.next(kLogits));
    sampler.see({&text.back(), 1});
  }

  // 2 becomes 0.5, 1.25 becomes 0.3125, 1 becomes 0.25; of 0 (0.5), 2 (0.5) and 6 (0.5) the first.
  EXPECT_EQ(text, (std::vector<std::int32_t>{2, 4, 7, 0}));
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLikeliest) {
  SamplingOptions options;
  options.temperature = 0;

  EXPECT_EQ(counts(options, {1, 3, 2, 3}, 10), (std::vector<std::int64_t>{0, 10, 0, 0}));
}

TEST(Sampler, AFunctionOfSeedPlusStreamAndDraws) {
  const auto text = [](std::uint64_t seed, std::uint64_t stream) {
    SamplingOptions options;
    options.seed = seed;
    Sampler sampler(options, stream, 8);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(kLogits));
    return ids;
  };

  EXPECT_EQ(text(5, 2), text(5, 2));
  EXPECT_EQ(text(5, 2), text(7, 0));
  EXPECT_NE(text(5, 2), text(5, 3));
}

TEST(Sampler, ExtremesStayFinite) {
  SamplingOptions options;
  options.temperature = 1e-300;
  EXPECT_EQ(counts(options, {-1e38F, 1e38F, 0}, 20), (std::vector<std::int64_t>{0, 20, 0}));
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(counts({}, {none, 0, none}, 20), (std::vector<std::int64_t>{0, 20, 0}));
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Logits& logits :
       {Logits{0, nan}, Logits{nan, 0}, Logits{0, infinity}, Logits{-infinity, -infinity}}) {
    Sampler sampler({}, 0, 2);
    try {
      (void)sampler.next(logits);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::numerics);
    }
  }
}

}  // namespace
}  // namespace hyperslab::test
