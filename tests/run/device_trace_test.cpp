// SPDX-License-Identifier: Apache-2.0
#include "device_trace.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace hyperslab::test {
namespace {

DeviceEvent kernel_of(std::int64_t operation, double begin_seconds, double end_seconds) {
  DeviceEvent event;
  event.operation = operation;
  event.begin_seconds = begin_seconds;
  event.end_seconds = end_seconds;
  return event;
}

TEST(OperationsOnDevice, AreWhereTheirKernelsAre) {
  const double unknown = std::nan("");
  const std::vector<TraceOperation> called = {
      {"data", "all_reduce", 3, 64, -1, 0.1, unknown, unknown},
      {"data", "all_reduce", 4, 64, -1, 0.2, unknown, unknown},
      {"pipeline", "exchange", 9, 32, 1, 0.3, unknown, unknown}};

  const auto found =
      run::operations_on_device(called,
                                {kernel_of(-1, 100.5, 109.0), kernel_of(2, 103.0, 104.0),
                                 kernel_of(0, 101.0, 102.0), kernel_of(2, 103.5, 105.0)},
                                100.0);

  ASSERT_EQ(found.size(), 2U) << "what has no kernel did not run";
  EXPECT_EQ(found[0].ticket, 3U);
  EXPECT_EQ(found[0].call_seconds, 1.0);
  EXPECT_EQ(found[0].end_seconds, 2.0);
  EXPECT_TRUE(std::isnan(found[0].wait_seconds));
  EXPECT_EQ(found[1].ticket, 9U);
  EXPECT_EQ(found[1].microbatch, 1);
  EXPECT_EQ(found[1].call_seconds, 3.0) << "the first of two kernels";
  EXPECT_EQ(found[1].end_seconds, 5.0);
}

TEST(OperationsOnDevice, NothingIsReportedWithoutEvents) {
  const std::vector<TraceOperation> called = {{"data", "all_reduce", 3, 64, -1, 0.1, 0.1, 0.1}};

  EXPECT_TRUE(run::operations_on_device(called, {}, 100.0).empty());
}

}  // namespace
}  // namespace hyperslab::test
