// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>

#include "dataset/token_writer.hpp"
#include "hyperslab/core/philox.hpp"
#include "io/dataset/files.hpp"
#include "support/allocations.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using io::Loader;
using io::Sampling;
using io::TokenSamples;
using Ids = std::vector<std::int32_t>;

struct OwnedBatch {
  OwnedBatch(Dim B, Dim T)
      : tokens(Device::cpu, DType::i32, {B, T}),
        targets(Device::cpu, DType::i32, {B, T}),
        token_sort_index(Device::cpu, DType::i32, {B * T}),
        position(Device::cpu, DType::i64, {B}) {}
  [[nodiscard]] Batch views() {
    return {tokens.view(), targets.view(), token_sort_index.view(), position.view()};
  }
  Tensor tokens, targets, token_sort_index, position;
};

/// Position in the global batch -> tokens and targets, over all ranks and microbatches of a step.
std::map<std::int64_t, Ids> global_batch(const TokenSamples& samples, std::int64_t step,
                                         std::int64_t G, int ranks, Dim B, Dim T) {
  std::map<std::int64_t, Ids> out;
  OwnedBatch batch(B, T);
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(samples, G, rank, ranks);
    for (int m = 0; m < G / (B * ranks); ++m) {
      loader.load(step, m, batch.views());
      for (Dim b = 0; b < B; ++b) {
        const auto row = batch.tokens.view().slice(b, 1).span<std::int32_t>();
        const auto targets = batch.targets.view().slice(b, 1).span<std::int32_t>();
        Ids ids(row.begin(), row.end());
        ids.insert(ids.end(), targets.begin(), targets.end());
        const std::int64_t position =
            batch.position.view().span<std::int64_t>()[static_cast<std::size_t>(b)];
        EXPECT_TRUE(out.emplace(position, ids).second) << "position " << position << " came twice";
      }
    }
  }
  return out;
}

TEST(Loader, GivesTheSameGlobalBatchToAnyNumberOfRanks) {
  const Counting source(5000);
  const TokenSamples samples(source, Sampling::blocks, 5, 42);
  constexpr std::int64_t G = 48;

  for (const std::int64_t step : {1, 2, 50}) {
    const auto reference = global_batch(samples, step, G, 1, 48, 5);
    ASSERT_EQ(reference.size(), 48U);
    for (std::int64_t p = 0; p < G; ++p) {
      EXPECT_EQ(reference.at(p).front(), samples.start((step - 1) * G + p));
    }
    for (const int ranks : {1, 2, 3, 4, 6}) {
      for (const Dim B : {1, 2, 4}) {
        EXPECT_EQ(global_batch(samples, step, G, ranks, B, 5), reference) << ranks << " x " << B;
      }
    }
  }
}

TEST(Loader, TokenSortIndexIsStable) {
  struct Case {
    std::int64_t vocabulary;
    Dim B, T;
  };
  for (const Case& c : {Case{1, 2, 8}, Case{2, 3, 5}, Case{257, 8, 256}, Case{50257, 4, 1024},
                        Case{200019, 2, 64}, Case{3000000, 2, 64}, Case{1LL << 31, 4, 64}}) {
    const auto source = io::open_tokens({"synthetic"}, io::RawIds::uint16, c.vocabulary, 3);
    const TokenSamples samples(*source, Sampling::windows, c.T, 42);
    Loader loader(samples, c.B, 0, 1);
    OwnedBatch batch(c.B, c.T);

    loader.load(1, 0, batch.views());

    const auto tokens = batch.tokens.view().span<std::int32_t>();
    Ids expected(tokens.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::ranges::stable_sort(expected, {}, [&](std::int32_t position) {
      return tokens[static_cast<std::size_t>(position)];
    });
    EXPECT_TRUE(std::ranges::equal(batch.token_sort_index.view().span<std::int32_t>(), expected))
        << c.vocabulary;
  }
}

TEST(Loader, OverfitsOneBatchIfAsked) {
  const Counting source(5000);
  const TokenSamples samples(source, Sampling::blocks, 5, 42);
  Loader one(samples, 4, 0, 1, true);
  Loader all(samples, 4, 0, 1);
  OwnedBatch first(4, 5);
  OwnedBatch later(4, 5);

  one.load(1, 0, first.views());
  one.load(9, 0, later.views());
  EXPECT_EQ(to_doubles(first.tokens.view()), to_doubles(later.tokens.view()));

  all.load(9, 0, later.views());
  EXPECT_NE(to_doubles(first.tokens.view()), to_doubles(later.tokens.view()));
}

TEST(Loader, RefusesMicrobatchesOutsideTheGlobalBatch) {
  const Counting source(5000);
  const TokenSamples samples(source, Sampling::blocks, 5, 42);
  Loader loader(samples, 8, 1, 2);
  OwnedBatch batch(2, 5);

  EXPECT_NO_THROW(loader.load(1, 1, batch.views()));
  EXPECT_THROW(loader.load(1, 2, batch.views()), Error);
  EXPECT_THROW(loader.load(0, 0, batch.views()), Error);
  EXPECT_THROW(Loader(samples, 8, 2, 2), Error);
  EXPECT_THROW(Loader(samples, 8, 0, 3), Error);
}

class LoaderOfFiles : public FilesTest {
 protected:
  /// 8 Mi random uint16 tokens below 50257.
  std::unique_ptr<io::TokenSource> source() {
    Ids ids(8 << 20);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto word = philox(philox_counter(i, 1), 5).x[0];
      ids[i] = static_cast<std::int32_t>(word % 50257);
    }
    io::write_token_file(path("tokens.bin"), ids, 50257);
    return io::open_tokens({path("tokens.bin")}, io::RawIds::uint16, 50257, 1);
  }
};

TEST_F(LoaderOfFiles, AllocatesNothingAfterTheFirstCall) {
  const auto tokens = source();
  for (const Sampling sampling : {Sampling::blocks, Sampling::windows}) {
    const TokenSamples samples(*tokens, sampling, 256, 42);
    Loader loader(samples, 16, 0, 1);
    OwnedBatch batch(8, 256);
    const Batch views = batch.views();
    loader.load(1, 0, views);

    const long before = allocations();
    for (std::int64_t step = 1; step < 20; ++step) loader.load(step, 1, views);

    EXPECT_EQ(allocations(), before);
  }
  EXPECT_GT(allocations(), 0);
}

TEST_F(LoaderOfFiles, ReportsItsThroughput) {
  const auto tokens = source();
  const TokenSamples samples(*tokens, Sampling::blocks, 256, 42);
  Loader loader(samples, 8, 0, 1);
  OwnedBatch batch(8, 256);
  constexpr int kSteps = 8000;

  const auto start = std::chrono::steady_clock::now();
  for (int step = 1; step <= kSteps; ++step) loader.load(step, 0, batch.views());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  const double tokens_per_second = kSteps * 8 * 256 / seconds.count();
  std::printf("load(): %.1f million tokens/s\n", tokens_per_second / 1e6);
  RecordProperty("million_tokens_per_second", static_cast<int>(tokens_per_second / 1e6));
  EXPECT_GT(tokens_per_second, 1e6);
}

/// Every token's own count of the keys in its document, and of the newest of them.
TEST(Loader, CountsTheKeysThatDocumentsLeave) {
  constexpr Dim T = 32;
  constexpr Dim kWindow = 5;
  const auto source = io::open_tokens({"synthetic"}, io::RawIds::uint16, 9, 3);
  const io::TargetRules rules = {.end_token = 0};
  const TokenSamples samples(*source, Sampling::blocks, T, 42, true, rules);
  OwnedBatch batch(2, T);
  Tensor first(Device::cpu, DType::i32, {2, T});
  Batch views = batch.views();
  Loader plain(samples, 4, 0, 1);
  plain.load(1, 0, views);
  EXPECT_EQ(plain.key_shares(1).all, 1) << "nothing asked for it";
  views.first_keys = first.view();
  Loader loader(samples, 4, 0, 1);
  loader.count_keys(kWindow);

  double all = 0;
  double windowed = 0;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    loader.load(3, microbatch, views);
    for (Dim b = 0; b < 2; ++b) {
      Dim begin = 0;
      for (Dim t = 0; t < T; ++t) {
        all += static_cast<double>(t - begin + 1);
        windowed += static_cast<double>(std::min(t - begin + 1, kWindow));
        if (batch.tokens.view().data<std::int32_t>()[b * T + t] == 0) begin = t + 1;
      }
    }
  }

  EXPECT_DOUBLE_EQ(loader.key_shares(3).all, all / (4 * T * (T + 1) / 2.0));
  EXPECT_DOUBLE_EQ(loader.key_shares(3).windowed,
                   windowed / (4 * (1 + 2 + 3 + 4 + (T - 4) * kWindow)));
  EXPECT_LT(loader.key_shares(3).all, 0.5);
  EXPECT_EQ(loader.key_shares(2).all, 1) << "that step was not loaded";
}

}  // namespace
}  // namespace hyperslab::test
