// SPDX-License-Identifier: Apache-2.0
// Whether NVIDIA's driver is new enough for this program.
#pragma once

#include <string>

namespace hyperslab {

/// What is wrong with a driver that CUDA refused as too old, which serves CUDA up to `driver`, for
/// a program that was built with `program`, both as CUDA numbers versions (12020 is 12.2): one line
/// without its end. Empty if `driver` is 0: none was refused.
[[nodiscard]] std::string driver_problem(int driver, int program);

/// The same of this machine and this program, if its driver is why CUDA finds no GPU; empty without
/// CUDA. Never throws.
[[nodiscard]] std::string cuda_driver_problem();

}  // namespace hyperslab
