// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/failure_notice.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "hyperslab/core/recorder.hpp"

namespace hyperslab {
namespace {

TEST(FailureNotice, ReturnsAtOnceWithoutAListener) {
  const double start = now_seconds();
  failure_notice::give();
  EXPECT_LT(now_seconds() - start, 0.5);
  EXPECT_FALSE(failure_notice::is_given());
}

TEST(FailureNotice, WakesTheListenerAndWaitsForItsAnswer) {
  const int event = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_GE(event, 0);
  failure_notice::listen(event);
  std::atomic<bool> reported = false;
  std::thread listener([&] {
    pollfd waiting = {event, POLLIN, 0};
    if (::poll(&waiting, 1, 10'000) == 1 && failure_notice::is_given()) reported = true;
    failure_notice::answer();
  });

  failure_notice::give();

  EXPECT_TRUE(reported);
  listener.join();
  failure_notice::listen(-1);
  ::close(event);
}

TEST(FailureNotice, DoesNotWaitForEverForAnAnswer) {
  const int event = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_GE(event, 0);
  failure_notice::listen(event);
  const double start = now_seconds();

  failure_notice::give();

  const double waited = now_seconds() - start;
  EXPECT_GT(waited, 1);
  EXPECT_LT(waited, 8);
  failure_notice::listen(-1);
  ::close(event);
}

}  // namespace
}  // namespace hyperslab
