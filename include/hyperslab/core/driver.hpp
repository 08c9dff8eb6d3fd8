// SPDX-License-Identifier: Apache-2.0
// The check that NVIDIA's driver is new enough for this program.
#pragma once

#include <string>

namespace hyperslab {

/// The problem with a driver that CUDA refused as too old, in one line without its end. The driver
/// serves CUDA up to `driver`, the program was built with `program`, both as CUDA numbers versions
/// (12020 is 12.2). Empty if `driver` is 0: none was refused.
[[nodiscard]] std::string driver_problem(int driver, int program);

/// driver_problem of this machine and this program, if its driver is why CUDA finds no GPU; empty
/// without CUDA. Never throws.
[[nodiscard]] std::string cuda_driver_problem();

}  // namespace hyperslab
