// SPDX-License-Identifier: Apache-2.0
#include "images/worker_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hyperslab::io {
namespace {

TEST(WorkerPool, DoesEveryItemOnceByItsOwnThreads) {
  WorkerPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::atomic<int>> done(137);
    std::atomic<bool> in_range = true;
    pool.run(done.size(), [&](int worker, std::size_t item) {
      ++done[item];
      if (worker < 0 || worker >= 4) in_range = false;
    });
    EXPECT_TRUE(in_range);
    for (const auto& count : done) EXPECT_EQ(count, 1);
  }
  pool.run(0, [](int, std::size_t) { FAIL(); });
}

TEST(WorkerPool, RethrowsTheFailureOfTheLowestItemAndGoesOn) {
  WorkerPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::string what;
    try {
      pool.run(64, [](int, std::size_t item) {
        if (item >= 5) throw std::runtime_error(std::to_string(item));
      });
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    EXPECT_EQ(what, "5");
  }
  std::atomic<int> done = 0;
  pool.run(10, [&](int, std::size_t) { ++done; });
  EXPECT_EQ(done, 10);
}

TEST(WorkerPool, ServesSeveralCallersInTurn) {
  WorkerPool pool(2);
  std::atomic<int> sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) pool.run(9, [&](int, std::size_t) { ++sum; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 50 * 9);
}

}  // namespace
}  // namespace hyperslab::io
