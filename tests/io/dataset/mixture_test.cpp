// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/mixture.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/loss.hpp"
#include "io/dataset/files.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {
namespace {

using io::MixedSamples;
using io::MixtureOrder;
using io::MixturePlace;
using io::MixtureSchedule;
using io::Sampling;
using Counts = std::vector<std::int64_t>;

/// How far a source is from its share of the first k samples, at worst over the first `samples`.
double largest_distance(const MixtureOrder& order, std::int64_t samples) {
  const Counts& parts = order.parts();
  Counts counts(parts.size());
  double worst = 0;
  for (std::int64_t k = 0; k < samples; ++k) {
    const MixturePlace place = order.place(k);
    EXPECT_EQ(place.index, counts[place.source]) << k;  // each index once, in order
    ++counts[place.source];
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double share = static_cast<double>(parts[i]) / static_cast<double>(order.period());
      worst = std::max(
          worst, std::abs(static_cast<double>(counts[i]) - share * static_cast<double>(k + 1)));
    }
  }
  return worst;
}

TEST(Mixture, EverySourceHasItsShareOfEveryPrefix) {
  for (const std::vector<double>& weights : {std::vector<double>{0.7, 0.2, 0.1},
                                             {1},
                                             {1, 1},
                                             {3, 1, 1, 1, 1, 1},
                                             {0, 5, 0, 2},
                                             {0.97, 0.01, 0.01, 0.01},
                                             {5, 5, 5, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1}}) {
    const MixtureOrder order(weights);
    EXPECT_LT(largest_distance(order, 2 * order.period() + 7), 1);
  }
}

TEST(Mixture, AlsoWithDrawnWeightsOfAnyNumberOfSources) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> draw(0, 1);
  for (const std::size_t sources : {2U, 3U, 5U, 20U, 100U}) {
    std::vector<double> weights(sources);
    for (double& weight : weights) weight = std::pow(draw(random), 3) + 1e-3;
    const MixtureOrder order(weights);
    ASSERT_EQ(order.period(), MixtureOrder::kMostPeriod);
    EXPECT_LT(largest_distance(order, order.period()), 1) << sources;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < sources; ++i) {
      EXPECT_NEAR(static_cast<double>(order.parts()[i]) / MixtureOrder::kMostPeriod,
                  weights[i] / sum, 1.0 / MixtureOrder::kMostPeriod);
    }
  }
}

TEST(Mixture, SharesOfWholeNumbersAreExactAndTheirPeriodShort) {
  EXPECT_EQ(MixtureOrder({0.7, 0.2, 0.1}).parts(), (Counts{7, 2, 1}));
  EXPECT_EQ(MixtureOrder({1.0 / 3, 2.0 / 3}).parts(), (Counts{1, 2}));
  EXPECT_EQ(MixtureOrder({30, 20, 0}).parts(), (Counts{3, 2, 0}));
  EXPECT_THROW(MixtureOrder({1, 1e-9}), Error);
}

TEST(Mixture, CountsAreThoseOfThePrefixHoweverLong) {
  const MixtureOrder order({0.61, 0.28, 0.11});
  EXPECT_EQ(order.counts(0), (Counts{0, 0, 0}));
  for (const std::int64_t k : {1LL, 99LL, 100LL, 12345LL, 10'000'000'000'017LL}) {
    const Counts counts = order.counts(k);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), k);
    const MixturePlace next = order.place(k);
    EXPECT_EQ(next.index, counts[next.source]);
  }
  EXPECT_EQ(order.counts(10'000'000'000'000LL),
            (Counts{6'100'000'000'000, 2'800'000'000'000, 1'100'000'000'000}));
}

TEST(Mixture, StagesGoOnWhereTheLastOnesCameTo) {
  const MixtureSchedule schedule({{0, {1, 1}}, {7, {0, 1}}, {12, {3, 1}}});
  Counts counts(2);
  for (std::int64_t k = 0; k < 100; ++k) {
    EXPECT_EQ(schedule.counts(k), counts) << k;
    const MixturePlace place = schedule.place(k);
    EXPECT_EQ(place.index, counts[place.source]) << k;
    if (k >= 7 && k < 12) {
      EXPECT_EQ(place.source, 1U) << k;
    }
    ++counts[place.source];
  }
  EXPECT_EQ(counts, (Counts{4 + 66, 3 + 5 + 22}));
}

TEST(Mixture, StagesAddUpTheirDistancesFromTheShares) {
  const std::vector<double> weights = {5, 4, 3};
  constexpr std::int64_t kSamples = 8;
  std::vector<io::MixtureStage> stages;
  for (std::int64_t s = 0; s < 10; ++s) stages.push_back({s * kSamples, weights});
  const MixtureSchedule schedule(stages);
  for (std::int64_t k = 1; k <= 10 * kSamples; ++k) {
    const Counts counts = schedule.counts(k);
    const auto begun = static_cast<double>((k + kSamples - 1) / kSamples);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double share = weights[i] / 12 * static_cast<double>(k);
      EXPECT_LT(std::abs(static_cast<double>(counts[i]) - share), begun) << k;
    }
  }
}

/// Ids that show their part: `first` and up.
std::string part(const TempFolder& folder, const std::string& name, std::uint16_t first,
                 std::int64_t tokens) {
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), first);
  std::string path = folder.path() + "/" + name;
  write_file(path, llmc(20240520, 1, tokens, ids));
  return path;
}

TEST(Mixture, SamplesAreThoseOfTheSourcesInTheirOwnOrder) {
  constexpr Dim kT = 8;
  const TempFolder folder;
  const std::string a1 = part(folder, "a1.bin", 0, 41);
  const std::string a2 = part(folder, "a2.bin", 41, 40);
  const std::string b = part(folder, "b.bin", 1000, 33);
  const auto all =
      io::open_tokens({folder.path() + "/a*.bin", b}, io::RawIds::uint16, 2000, 1, false, true);
  ASSERT_EQ(all->parts(), (Counts{0, 81}));
  const auto only_a = io::open_tokens({a1, a2}, io::RawIds::uint16, 2000, 1, false, true);
  const io::TokenSamples alone(*only_a, Sampling::blocks, kT, 5);

  const MixedSamples mixed(*all, {{0, {2, 1}}}, Sampling::blocks, kT, 5);

  EXPECT_EQ(mixed.size(), 10 + 4);
  EXPECT_EQ(mixed.sizes(), (Counts{10, 4}));
  EXPECT_EQ(mixed.targets(), kT);
  EXPECT_FALSE(mixed.may_ignore());
  Tensor tokens(Device::cpu, DType::i32, {30, kT});
  Tensor targets(Device::cpu, DType::i32, {30, kT});
  Batch batch;
  batch.tokens = tokens.view();
  batch.targets = targets.view();
  mixed.read(0, 29, batch);
  std::vector<std::int32_t> expected(kT);
  std::vector<std::int32_t> expected_targets(kT);
  for (Dim k = 0; k < 29; ++k) {
    const MixturePlace place = mixed.schedule().place(k);
    const auto row = tokens.view().slice(k, 1).span<std::int32_t>();
    if (place.source == 0) {
      alone.read(place.index, expected, expected_targets);
      EXPECT_TRUE(std::ranges::equal(row, expected)) << k;
    } else {
      EXPECT_GE(row[0], 1000) << k;
    }
    EXPECT_EQ(mixed.counted(k), kT);
  }
  EXPECT_EQ(targets.view().slice(29, 1).span<std::int32_t>()[0], ops::kIgnoredTarget);
}

TEST(Mixture, FilesOfAnEntryStayApart) {
  constexpr Dim kT = 8;
  const TempFolder folder;
  (void)part(folder, "a1.bin", 0, 41);
  (void)part(folder, "a2.bin", 41, 40);
  const std::string b = part(folder, "b.bin", 1000, 33);
  const auto all = io::open_tokens({folder.path() + "/a*.bin", b}, io::RawIds::uint16, 2000, 1);

  const MixedSamples mixed(*all, {{0, {2, 1}}}, Sampling::blocks, kT, 5);

  EXPECT_EQ(mixed.sizes(), (Counts{5 + 4, 4}));
  Tensor tokens(Device::cpu, DType::i32, {27, kT});
  Tensor targets(Device::cpu, DType::i32, {27, kT});
  Batch batch;
  batch.tokens = tokens.view();
  batch.targets = targets.view();
  mixed.read(0, io::kNoEnd, batch);
  for (Dim k = 0; k < 27; ++k) {  // the last target of a2's first token is a sample of a1
    const auto row = targets.view().slice(k, 1).span<std::int32_t>();
    EXPECT_TRUE(row.back() <= 40 || tokens.view().slice(k, 1).span<std::int32_t>()[0] >= 41) << k;
  }
}

TEST(Mixture, WeightsThatDoNotFitTheSourcesAreRefused) {
  const TempFolder folder;
  const std::string a = part(folder, "a.bin", 0, 41);
  const auto all = io::open_tokens({a, a}, io::RawIds::uint16, 2000, 1);

  EXPECT_THROW(MixedSamples(*all, {{0, {1, 1, 1}}}, Sampling::blocks, 8, 1), Error);
  EXPECT_THROW(MixedSamples(*all, {{0, {1, 1}}}, Sampling::blocks, 64, 1), Error);
}

/// 10 TB and more, of which a file system stores nothing.
TEST(Mixture, TheFirstBatchOfTenTerabytesComesWithinASecond) {
  const TempFolder folder;
  std::vector<std::string> paths;
  for (const char* name : {"a.bin", "b.bin", "c.bin"}) {
    paths.push_back(folder.path() + "/" + name);
    std::ofstream(paths.back()).put('\0');
    std::error_code failed;
    std::filesystem::resize_file(paths.back(), 3'500'000'000'000, failed);
    if (failed) GTEST_SKIP() << "no files of so many bytes here: " << failed.message();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto all = io::open_tokens(paths, io::RawIds::uint16, 50257, 1);
  const MixedSamples mixed(*all, {{0, {0.5, 0.3, 0.2}}}, Sampling::blocks, 4096, 1);
  EXPECT_GT(all->size(), 5'000'000'000'000);
  EXPECT_NE(all->fingerprint(), 0U);
  Tensor tokens(Device::cpu, DType::i32, {64, 4096});
  Tensor targets(Device::cpu, DType::i32, {64, 4096});
  Batch batch;
  batch.tokens = tokens.view();
  batch.targets = targets.view();
  mixed.read(std::int64_t{1} << 40, io::kNoEnd, batch);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;

  EXPECT_LT(took.count(), 1 + 4);  // CI's disks are slow; a laptop takes 0.1 s
}

}  // namespace
}  // namespace hyperslab::test
