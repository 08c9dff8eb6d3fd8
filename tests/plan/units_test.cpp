// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/units.hpp"

#include <gtest/gtest.h>

namespace hyperslab::plan {
namespace {

TEST(Units, OfBytesGrowWithThem) {
  EXPECT_EQ(bytes_text(0), "0.0 MiB");
  EXPECT_EQ(bytes_text(1.4 * (1 << 20)), "1.4 MiB");
  EXPECT_EQ(bytes_text(0.5 * (1 << 30)), "0.50 GiB");
  EXPECT_EQ(bytes_text(1023.5 * (1 << 30)), "1023.50 GiB");
  EXPECT_EQ(bytes_text(1536.0 * (1 << 30)), "1.50 TiB");
}

TEST(Units, OfRatesAreThoseOfCoresAndOfGpus) {
  EXPECT_EQ(rate_text(97.02e9), "97.0 GFLOP/s");
  EXPECT_EQ(rate_text(989.4e12), "989.4 TFLOP/s");
}

}  // namespace
}  // namespace hyperslab::plan
