// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "dataset/token_writer.hpp"
#include "hyperslab/ops/loss.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using io::Sampling;
using io::TokenSamples;
using Ids = std::vector<std::int32_t>;

std::vector<std::int64_t> starts(const TokenSamples& samples, std::int64_t first,
                                 std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t g = first; g < first + count; ++g) out.push_back(samples.start(g));
  return out;
}

TEST(Samples, BlocksAreAPermutationInEveryEpochAndANewOneInTheNext) {
  const Counting source(1003);
  const TokenSamples samples(source, Sampling::blocks, 10, 42);
  ASSERT_EQ(samples.size(), 100);

  const auto first = starts(samples, 0, 100);
  const auto second = starts(samples, 100, 100);
  auto sorted_first = first;
  auto sorted_second = second;
  std::ranges::sort(sorted_first);
  std::ranges::sort(sorted_second);

  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sorted_first[static_cast<std::size_t>(i)], 10 * i);
    EXPECT_EQ(sorted_second[static_cast<std::size_t>(i)], 10 * i);
  }
  EXPECT_NE(first, second);
  EXPECT_NE(first, sorted_first);
  EXPECT_EQ(first, starts(TokenSamples(source, Sampling::blocks, 10, 42), 0, 100));
  EXPECT_NE(first, starts(TokenSamples(source, Sampling::blocks, 10, 43), 0, 100));
}

TEST(Samples, BlocksCoverEveryTokenOnceAsInputAndOnceAsTarget) {
  const Counting source(101);
  const TokenSamples samples(source, Sampling::blocks, 10, 42);
  std::vector<int> as_input(101);
  std::vector<int> as_target(101);

  Ids tokens(10);
  Ids targets(10);
  for (std::int64_t g = 0; g < samples.size(); ++g) {
    samples.read(g, tokens, targets);
    for (std::size_t t = 0; t < 10; ++t) {
      EXPECT_EQ(targets[t], tokens[t] + 1);
      ++as_input[static_cast<std::size_t>(tokens[t])];
      ++as_target[static_cast<std::size_t>(targets[t])];
    }
  }

  std::vector<int> once(101, 1);
  once.back() = 0;  // the last token has no target
  EXPECT_EQ(as_input, once);
  std::ranges::reverse(once);
  EXPECT_EQ(as_target, once);
}

TEST(Samples, WindowsAreReproducibleAndReachBothEnds) {
  const Counting source(20);
  const TokenSamples samples(source, Sampling::windows, 8, 42);

  const auto found = starts(samples, 0, 2000);

  EXPECT_EQ(found, starts(TokenSamples(source, Sampling::windows, 8, 42), 0, 2000));
  EXPECT_NE(found, starts(TokenSamples(source, Sampling::windows, 8, 43), 0, 2000));
  EXPECT_EQ(std::ranges::min(found), 0);
  EXPECT_EQ(std::ranges::max(found), 11);  // tokens 11 to 18 with targets 12 to 19
  for (std::int64_t start = 0; start < 12; ++start) {
    EXPECT_NEAR(std::ranges::count(found, start), 2000.0 / 12, 60);  // 5 deviations
  }
}

TEST(Samples, WithoutShuffleBlocksFollowTheFile) {
  const Counting source(31);

  for (const Sampling sampling : {Sampling::blocks, Sampling::windows}) {
    const TokenSamples samples(source, sampling, 10, 42, false);
    EXPECT_EQ(starts(samples, 0, 7), (std::vector<std::int64_t>{0, 10, 20, 0, 10, 20, 0}));
  }
}

TEST(Samples, StridedOnesCountEveryTargetOnceWithTheContextThatIsPromised) {
  const Counting source(101);
  constexpr Dim kT = 10;
  for (const Dim stride : {1, 3, 7, 10}) {
    for (const std::int64_t covered : {10, 11, 20, 93, 100}) {
      const TokenSamples samples = TokenSamples::strided(source, kT, stride, covered);
      Ids seen;
      Ids tokens(kT);
      Ids targets(kT);
      for (std::int64_t g = 0; g < samples.size(); ++g) {
        samples.read(g, tokens, targets);
        std::int64_t counted = 0;
        for (Dim t = 0; t < kT; ++t) {
          const std::int32_t target = targets[static_cast<std::size_t>(t)];
          if (target == ops::kIgnoredTarget) continue;
          EXPECT_EQ(target, tokens[static_cast<std::size_t>(t)] + 1);
          EXPECT_TRUE(t + 1 >= kT - stride + 1 || tokens.front() == 0) << stride << " " << t;
          seen.push_back(target);
          ++counted;
        }
        EXPECT_EQ(samples.counted(g), counted);
        EXPECT_TRUE(counted == kT || samples.may_ignore());
      }
      Ids all(static_cast<std::size_t>(covered));
      std::iota(all.begin(), all.end(), 1);
      EXPECT_EQ(seen, all) << stride << " " << covered;
    }
  }
}

TEST(Samples, ASourceOfOneSampleServesAndASmallerOneIsRefused) {
  const Counting enough(11);
  const Counting small(10);

  EXPECT_EQ(TokenSamples(enough, Sampling::blocks, 10, 42).size(), 1);
  EXPECT_EQ(TokenSamples(enough, Sampling::windows, 10, 42).start(5), 0);
  expect_error(ExitCode::data, {"counting", "at least 11 tokens", "found 10"},
               [&] { TokenSamples(small, Sampling::blocks, 10, 42); });
}

class SamplesOfFiles : public FilesTest {};

TEST_F(SamplesOfFiles, OneSampleMayCrossSeveralShardsThatAreJoined) {
  io::write_token_file(path("1.bin"), Ids{0, 1, 2}, 257);
  io::write_token_file(path("2.bin"), Ids{3}, 257);
  io::write_token_file(path("3.npy"), Ids{4, 5, 6, 7, 8}, 257);
  const auto source = io::open_tokens({path("*")}, io::RawIds::uint16, 257, 1, false, true);
  const TokenSamples samples(*source, Sampling::blocks, 8, 42);

  Ids tokens(8);
  Ids targets(8);
  samples.read(0, tokens, targets);

  EXPECT_EQ(tokens, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(targets, (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
}

/// Files of ascending ids, one after the other: sizes 9, 3, 8, 13 and ids from 0 on.
class FilesApart : public FilesTest {
 protected:
  static constexpr Dim kT = 4;
  void SetUp() override {
    std::int32_t first = 0;
    for (const std::int32_t size : {9, 3, 8, 13}) {
      Ids ids(static_cast<std::size_t>(size));
      std::iota(ids.begin(), ids.end(), first);
      io::write_token_file(path(fmt::format("{:02}.bin", first)), ids, 257);
      first += size;
    }
    source_ = io::open_tokens({path("*")}, io::RawIds::uint16, 257, 1);
  }
  [[nodiscard]] static std::size_t file_of(std::int32_t id) {
    return id < 9 ? 0 : id < 12 ? 1 : id < 20 ? 2 : 3;
  }
  /// First tokens of the samples, each of which must lie in one file.
  [[nodiscard]] static std::set<std::int32_t> firsts(const TokenSamples& samples,
                                                     std::int64_t count) {
    std::set<std::int32_t> found;
    Ids tokens(kT);
    Ids targets(kT);
    for (std::int64_t g = 0; g < count; ++g) {
      samples.read(g, tokens, targets);
      EXPECT_EQ(file_of(tokens.front()), file_of(targets.back())) << g;
      EXPECT_EQ(targets.back(), tokens.front() + kT) << g;
      found.insert(tokens.front());
    }
    return found;
  }
  std::unique_ptr<io::TokenSource> source_;
};

TEST_F(FilesApart, BlocksAndWindowsLieInOneFile) {
  EXPECT_EQ(source_->segments(), (std::vector<std::int64_t>{0, 9, 12, 20}));
  const std::set<std::int32_t> blocks = {0, 4, 12, 20, 24, 28};
  const TokenSamples shuffled(*source_, Sampling::blocks, kT, 42);
  EXPECT_EQ(shuffled.size(), 6);
  EXPECT_EQ(firsts(shuffled, 6), blocks);
  EXPECT_EQ(firsts(TokenSamples(*source_, Sampling::blocks, kT, 42, false), 6), blocks);

  // Every start at which a file has four more tokens, and no other.
  std::set<std::int32_t> windows;
  for (std::int32_t id = 0; id < 29; ++id) {
    if (file_of(id) == file_of(id + kT)) windows.insert(id);
  }
  EXPECT_EQ(firsts(TokenSamples(*source_, Sampling::windows, kT, 42), 2000), windows);
}

TEST_F(FilesApart, StridedSamplesCountEveryTargetOfEveryFileOnce) {
  for (const Dim stride : {1, 3, 4}) {
    const std::int64_t all = TokenSamples::targets_in(*source_);
    ASSERT_EQ(all, 8 + 2 + 7 + 12);
    for (const std::int64_t covered : {all, std::int64_t{12}}) {
      const TokenSamples samples = TokenSamples::strided(*source_, kT, stride, covered);
      Ids seen;
      Ids tokens(kT);
      Ids targets(kT);
      for (std::int64_t g = 0; g < samples.size(); ++g) {
        samples.read(g, tokens, targets);
        const auto counted = kT - std::ranges::count(targets, ops::kIgnoredTarget);
        EXPECT_EQ(samples.counted(g), counted);
        for (std::size_t t = 0; t < targets.size(); ++t) {
          if (targets[t] == ops::kIgnoredTarget) continue;
          EXPECT_EQ(targets[t], tokens[t] + 1);
          EXPECT_EQ(file_of(targets[t]), file_of(tokens[t]));
          seen.push_back(targets[t]);
        }
      }
      Ids expected;
      for (std::int32_t id = 1; id < 33; ++id) {
        const bool of_blocks = id < 9 || (id > 12 && id < 17);
        if (file_of(id) == file_of(id - 1) && (covered == all || of_blocks)) expected.push_back(id);
      }
      EXPECT_EQ(seen, expected) << stride << " " << covered;
    }
  }
}

TEST_F(FilesApart, FilesThatAreAllTooShortAreRefusedWithTheKeyThatJoinsThem) {
  expect_error(ExitCode::data, {"at least 17 tokens in a file", "at most 13", "data.join_files"},
               [&] { TokenSamples(*source_, Sampling::blocks, 16, 42); });
}

}  // namespace
}  // namespace hyperslab::test
