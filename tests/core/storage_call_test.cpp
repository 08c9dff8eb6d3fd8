// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/storage_call.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>

namespace hyperslab {
namespace {

TEST(StorageCall, TheOldestIsReportedAsLongAsItLasts) {
  EXPECT_EQ(oldest_storage_call(), "");
  {
    const StorageCall first("writing", "run/a");
    const StorageCall second("removing", "run/b");
    EXPECT_EQ(oldest_storage_call(), "writing run/a for 0 s");
  }
  EXPECT_EQ(oldest_storage_call(), "");
}

TEST(StorageCall, ALongPathKeepsItsEnd) {
  const StorageCall call("writing", std::string(500, 'x') + "/manifest.json");

  EXPECT_LT(oldest_storage_call().size(), 110);
  EXPECT_NE(oldest_storage_call().find("xx/manifest.json for 0 s"), std::string::npos);
}

TEST(StorageCall, OneThatTookLongCountsWhenItEnds) {
  const std::uint64_t before = slow_storage_calls();
  { const StorageCall quick("writing", "run/a"); }
  const std::uint64_t after_quick = slow_storage_calls();
  {
    const StorageCall slow("syncing", "run/a");
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    EXPECT_EQ(slow_storage_calls(), before);
  }

  EXPECT_EQ(after_quick, before);
  EXPECT_EQ(slow_storage_calls(), before + 1);
}

TEST(StorageCall, MoreThanItHoldsAreLeftOut) {
  {
    std::deque<StorageCall> calls;
    for (int i = 0; i < 100; ++i) calls.emplace_back("writing", std::to_string(i));
    EXPECT_EQ(oldest_storage_call(), "writing 0 for 0 s");
  }
  EXPECT_EQ(oldest_storage_call(), "");
}

}  // namespace
}  // namespace hyperslab
