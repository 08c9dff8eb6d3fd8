// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/train/host_feed.hpp"
#include "support/allocations.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using train::HostFeed;
constexpr Dim kB = 2;
constexpr Dim kT = 6;
constexpr int kMicrobatches = 3;
constexpr std::int64_t kG = kB * kMicrobatches * 2;  // two data ranks

/// Tokens that show their place; reading may take time, and fail beyond a place.
class Source final : public io::TokenSource {
 public:
  explicit Source(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::int64_t size() const override { return size_; }
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    ++reads;
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (std::int32_t& id : out) {
      id = static_cast<std::int32_t>(first * 31 % 97);
      if (first++ >= bad_from) throw Error(ExitCode::data, "bad token");
    }
  }
  [[nodiscard]] std::string description() const override { return "source"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }

  mutable std::atomic<int> reads = 0;
  std::atomic<bool> slow = false;
  std::atomic<std::int64_t> bad_from = 1LL << 40;

 private:
  std::int64_t size_;
};

struct OwnedBatch {
  OwnedBatch()
      : tokens(Device::cpu, DType::i32, {kB, kT}),
        targets(Device::cpu, DType::i32, {kB, kT}),
        token_sort_index(Device::cpu, DType::i32, {kB * kT}),
        position(Device::cpu, DType::i64, {kB}) {}
  [[nodiscard]] Batch views() {
    return {tokens.view(), targets.view(), token_sort_index.view(), position.view()};
  }
  [[nodiscard]] std::vector<double> content() const {
    std::vector<double> all;
    for (const CView view :
         {tokens.view(), targets.view(), token_sort_index.view(), position.view()}) {
      const auto part = to_doubles(view);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  Tensor tokens, targets, token_sort_index, position;
};

class Feed : public testing::Test {
 protected:
  Feed()
      : source_(2000),
        samples_(source_, io::Sampling::blocks, kT, 42, true, {5}),
        loader_(samples_, kG, 1, 2),
        ctx_(Device::cpu),
        feed_(ctx_, batch_.views(), {3 * kMicrobatches, kMicrobatches}) {}

  std::vector<double> direct(io::Loader& loader, std::int64_t step, int microbatch) {
    OwnedBatch batch;
    const auto views = batch.views();
    loader.load(step, microbatch,
                {views.tokens, views.targets, views.token_sort_index, views.sample_position});
    return batch.content();
  }
  void expect_like_direct(std::int64_t step, int microbatch) {
    io::Loader own(samples_, kG, 1, 2);
    feed_.load(ctx_, loader_, step, microbatch, batch_.views());
    EXPECT_EQ(batch_.content(), direct(own, step, microbatch)) << step << ", " << microbatch;
  }

  Source source_;
  io::TokenSamples samples_;
  io::Loader loader_;
  Context ctx_;
  OwnedBatch batch_;
  HostFeed feed_;
};

TEST_F(Feed, GivesWhatLoadingGivesAcrossEpochs) {
  for (std::int64_t step = 1; step <= 100; ++step) {  // 332 samples an epoch
    for (int m = 0; m < kMicrobatches; ++m) expect_like_direct(step, m);
  }
}

TEST_F(Feed, GivesWhatLoadingGivesInAnyOrderOfCalls) {
  std::mt19937 random(3);
  std::int64_t step = 1;
  int microbatch = 0;
  for (int i = 0; i < 600; ++i) {
    source_.slow = i % 100 == 0;
    switch (random() % 4) {
      case 0: step = 1 + static_cast<std::int64_t>(random() % 90); [[fallthrough]];
      case 1: microbatch = static_cast<int>(random() % kMicrobatches); break;
      case 2: break;  // once more
      default:
        microbatch = (microbatch + 1) % kMicrobatches;
        if (microbatch == 0) ++step;
    }
    if (random() % 20 == 0) feed_.release();
    expect_like_direct(step, microbatch);
  }
}

TEST_F(Feed, GoesToTheViewsItIsGivenAndLeavesOutAbsentOnes) {
  OwnedBatch other;
  auto views = other.views();
  views.targets = View();
  const auto before = to_doubles(other.targets.view());

  feed_.load(ctx_, loader_, 4, 1, views);
  expect_like_direct(4, 1);

  EXPECT_EQ(to_doubles(other.tokens.view()), to_doubles(batch_.tokens.view()));
  EXPECT_EQ(to_doubles(other.token_sort_index.view()), to_doubles(batch_.token_sort_index.view()));
  EXPECT_EQ(to_doubles(other.targets.view()), before);
}

TEST_F(Feed, GivesMicrobatchesOfTheStepAgainWithoutReading) {
  const auto reads_at_rest = [this] {
    for (int before = -1; before != source_.reads;) {
      before = source_.reads;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    return source_.reads.load();
  };
  OwnedBatch batches[kMicrobatches];
  for (int m = 0; m < kMicrobatches; ++m) feed_.load(ctx_, loader_, 2, m, batches[m].views());
  const int reads = reads_at_rest();

  for (const int m : {0, 1, 2, 0}) {
    feed_.load(ctx_, loader_, 2, m, batch_.views());
    EXPECT_EQ(batch_.content(), batches[m].content()) << m;
  }
  EXPECT_EQ(reads_at_rest(), reads);
  expect_like_direct(3, 0);
}

TEST_F(Feed, WithoutAnEmbeddingDoesNotSort) {
  HostFeed feed(ctx_, batch_.views(), {3, kMicrobatches, false});
  for (std::int32_t& index : batch_.token_sort_index.view().span<std::int32_t>()) index = -7;

  feed.load(ctx_, loader_, 1, 0, batch_.views());

  EXPECT_EQ(to_doubles(batch_.token_sort_index.view()), std::vector<double>(kB * kT, -7));
}

TEST_F(Feed, ChangesLoaders) {
  const io::TokenSamples others(source_, io::Sampling::windows, kT, 43);
  io::Loader other(others, kG, 0, 2);
  io::Loader same(others, kG, 0, 2);
  expect_like_direct(1, 0);

  feed_.load(ctx_, other, 1, 1, batch_.views());

  EXPECT_EQ(batch_.content(), direct(same, 1, 1));
  feed_.release();  // before `other` goes
  expect_like_direct(1, 1);
}

TEST_F(Feed, LoadsAheadOnlySoFarAndCountsBeforeTheStepAsks) {
  expect_like_direct(1, 0);
  const auto settled = [this] {
    for (int before = -1; before != source_.reads;) {
      before = source_.reads;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    return source_.reads.load();
  };
  const int reads = settled();

  EXPECT_EQ(settled(), reads);  // it sleeps
  (void)loader_.counted_tokens(1);
  (void)loader_.counted_tokens(2);
  (void)loader_.counted_tokens(3);
  EXPECT_EQ(source_.reads, reads);  // the thread has read them
  (void)loader_.counted_tokens(4);
  EXPECT_GT(source_.reads, reads);
}

TEST_F(Feed, ThrowsAnErrorInTheLoadThatMeetsItAndGoesOn) {
  const io::TokenSamples in_order(source_, io::Sampling::blocks, kT, 42, false);
  io::Loader loader(in_order, kB, 0, 1);  // step s: tokens from (s - 1) B T
  HostFeed feed(ctx_, batch_.views(), {3, 1});
  source_.bad_from = 4 * kB * kT + 1;  // step 5

  for (std::int64_t step = 1; step <= 4; ++step) {
    EXPECT_NO_THROW(feed.load(ctx_, loader, step, 0, batch_.views()));
  }
  EXPECT_THROW(feed.load(ctx_, loader, 5, 0, batch_.views()), Error);
  EXPECT_THROW(feed.load(ctx_, loader, 5, 0, batch_.views()), Error);
  EXPECT_NO_THROW(feed.load(ctx_, loader, 2, 0, batch_.views()));
  source_.bad_from = 1LL << 40;
  EXPECT_NO_THROW(feed.load(ctx_, loader, 5, 0, batch_.views()));
  EXPECT_EQ(to_doubles(batch_.tokens.view()).front(), 4 * kB * kT * 31 % 97);
}

TEST_F(Feed, AllocatesNothingAfterTheFirstStep) {
  const auto step = [this](std::int64_t s) {
    for (int m = 0; m < kMicrobatches; ++m) feed_.load(ctx_, loader_, s, m, batch_.views());
  };
  step(1);

  const long before = allocations();
  for (std::int64_t s = 2; s < 60; ++s) step(s);
  step(1);  // a jump

  EXPECT_EQ(allocations(), before);
  EXPECT_GT(before, 0);
}

TEST_F(Feed, EndsWhileItsThreadReads) {
  source_.slow = true;
  for (int i = 0; i < 20; ++i) {
    HostFeed feed(ctx_, batch_.views(), {3, kMicrobatches});
    feed.load(ctx_, loader_, 1, 0, batch_.views());
  }
  source_.slow = false;
  expect_like_direct(1, 0);
}

TEST_F(Feed, GivesPartsOfAnEvaluationAndWhatDoesNotCountBeyondTheirEnd) {
  OwnedBatch other;
  OwnedBatch expected;
  const io::TokenSamples in_order(source_, io::Sampling::blocks, kT, 42, false);
  in_order.read(2, 2 + kB - 1, expected.views());

  feed_.load(ctx_, {in_order, 2, 2 + kB - 1, kB}, other.views());

  EXPECT_EQ(to_doubles(other.tokens.view()), to_doubles(expected.tokens.view()));
  EXPECT_EQ(to_doubles(other.targets.view()), to_doubles(expected.targets.view()));
  const auto targets = to_doubles(other.targets.view());
  EXPECT_NE(targets.front(), ops::kIgnoredTarget);
  EXPECT_EQ(std::vector<double>(targets.end() - kT, targets.end()),
            std::vector<double>(kT, ops::kIgnoredTarget));
}

}  // namespace
}  // namespace hyperslab::test
