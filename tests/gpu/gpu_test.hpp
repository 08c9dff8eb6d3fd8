// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "devices/problem.hpp"

namespace hyperslab::test {

/// Tests of what GPUs alone have: problems leave the CPU out, except for the oracle. Skips without
/// a GPU; with HYPERSLAB_REQUIRE_GPU=1 that is a failure.
class GpuTest : public DevicesTest {
 protected:
  void SetUp() override {
    DevicesTest::SetUp();
    Problem::with_cpu = false;
    if (cuda_device_count() == 0 && !HasFatalFailure()) GTEST_SKIP() << "no GPU here";
  }
  void TearDown() override { Problem::with_cpu = true; }
};

/// The dtypes that a GPU computes in.
inline const std::vector<DType>& kGpuTypes = kStoredTypes;

}  // namespace hyperslab::test
