// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/driver.hpp"

#include <fmt/format.h>

#include "cuda.hpp"
#include "hyperslab/core/device.hpp"

namespace hyperslab {
namespace {

constexpr int kMajor = 1000;  // 12020 is 12.2

std::string text_of(int version) {
  return fmt::format("{}.{}", version / kMajor, version % kMajor / 10);
}

}  // namespace

std::string driver_problem(int driver, int program) {
  if (driver == 0) return {};
  return fmt::format(
      "NVIDIA's driver serves CUDA up to {}, and this program was built with CUDA {}: update the "
      "driver, or build with an older toolkit",
      text_of(driver), text_of(program));
}

std::string cuda_driver_problem() {
  if constexpr (kHasCuda) {
    const auto [driver, program] = cuda_runtime::refused_versions();
    return driver_problem(driver, program);
  }
  return {};
}

}  // namespace hyperslab
