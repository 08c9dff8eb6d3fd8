// SPDX-License-Identifier: Apache-2.0
// A background thread of every rank agrees while the main threads do something else.
#include "hyperslab/comm/background_peers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab {
namespace {

using test::world;

/// "0:<length of its text>" and so on for the texts that rank r gives in a round: some fit into one
/// message of the transport, some do not, and some are empty.
std::string text_of(int rank, int round) {
  const std::size_t length =
      round % 3 == 0 ? 0 : (round % 3 == 1 ? 40 : 400 * static_cast<std::size_t>(rank + 1));
  return std::string(length, static_cast<char>('a' + (rank + round) % 26));
}

TEST(BackgroundPeers, GatherTextsWhileTheMainThreadsGather) {
  constexpr int kRounds = 30;
  const auto peers = world().background_peers();
  ASSERT_EQ(peers->rank(), world().rank());
  ASSERT_EQ(peers->size(), world().size());
  std::atomic<bool> done = false;
  std::vector<std::vector<std::string>> found;
  std::thread thread([&] {
    for (int round = 0; round < kRounds; ++round) {
      found.push_back(peers->all_gather(text_of(world().rank(), round)));
    }
    done = true;
  });

  // Ranks see the end at different times, so that the loop must not communicate itself.
  std::int64_t calls = 0;
  for (int i = 0; i < 20; ++i, ++calls) {
    peers->progress();
    EXPECT_EQ(world().max(world().rank()), world().size() - 1);  // another communicator's message
  }
  while (!done) {
    peers->progress();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  thread.join();

  ASSERT_EQ(found.size(), kRounds);
  for (int round = 0; round < kRounds; ++round) {
    const auto& texts = found[static_cast<std::size_t>(round)];
    ASSERT_EQ(texts.size(), static_cast<std::size_t>(world().size()));
    for (int rank = 0; rank < world().size(); ++rank) {
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank, round)) << round;
    }
  }
}

/// Every rank sends to the next one, each another number of bytes.
TEST(BackgroundPeers, ExchangeParcels) {
  constexpr std::size_t kMost = 100'000;
  const int size = world().size();
  const auto peers = world().background_peers();
  const int next = (world().rank() + 1) % size;
  const int before = (world().rank() + size - 1) % size;
  const auto bytes_of = [](int rank) { return kMost / static_cast<std::size_t>(rank + 1); };
  std::vector<char> mine(bytes_of(world().rank()), static_cast<char>('A' + world().rank()));
  std::vector<char> got(bytes_of(before), '?');
  std::atomic<bool> done = false;
  std::thread thread([&] {
    const std::vector<comm::BackgroundPeers::Parcel> sends = {{next, mine.data(), mine.size()}};
    const std::vector<comm::BackgroundPeers::Parcel> receives = {{before, got.data(), got.size()}};
    if (size > 1) {
      peers->exchange(sends, receives);
    } else {
      peers->exchange({}, {});  // no one to exchange with
      got = mine;
    }
    (void)peers->all_gather("after it");
    done = true;
  });
  while (!done) peers->progress();
  thread.join();

  EXPECT_EQ(std::count(got.begin(), got.end(), static_cast<char>('A' + before)),
            static_cast<std::ptrdiff_t>(got.size()));
}

TEST(BackgroundPeers, AFailureOnOneRankIsTheErrorOfAll) {
  const auto peers = world().background_peers();
  std::atomic<bool> done = false;
  std::string message;
  std::thread thread([&] {
    try {
      comm::agree(*peers, [&] {
        if (peers->rank() == peers->size() - 1) throw Error(ExitCode::storage, "the disk is full");
      });
    } catch (const Error& error) {
      message = error.what();
    }
    done = true;
  });
  while (!done) peers->progress();
  thread.join();

  EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
}

TEST(BackgroundPeers, AClosedOneLetsItsThreadGo) {
  if (world().size() == 1) return;  // a rank alone waits for no one
  const auto peers = world().background_peers();
  bool thrown = false;
  std::thread thread([&] {
    try {
      (void)peers->all_gather("no one moves this");
    } catch (const Error&) {
      thrown = true;
    }
  });

  peers->close();
  thread.join();

  EXPECT_TRUE(thrown);
}

}  // namespace
}  // namespace hyperslab
