// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/driver.hpp"

#include <gtest/gtest.h>

#include "hyperslab/core/device.hpp"

namespace hyperslab {
namespace {

TEST(DriverProblem, NamesBothVersions) {
  EXPECT_EQ(driver_problem(12020, 13000),
            "NVIDIA's driver serves CUDA up to 12.2, and this program was built with CUDA 13.0: "
            "update the driver, or build with an older toolkit");
  EXPECT_NE(driver_problem(13000, 13010), "");
}

TEST(DriverProblem, IsNoneWithoutADriverThatWasRefused) {
  EXPECT_EQ(driver_problem(0, 13000), "");
  if constexpr (!kHasCuda) {
    EXPECT_EQ(cuda_driver_problem(), "");
  }
}

}  // namespace
}  // namespace hyperslab
