// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <string_view>

namespace hyperslab {

// Defined in builds with CUDA only.

/// The address of a function of CUDA's driver, without linking to the driver. Throws Error(device)
/// if the driver has none of that name; `who` asks for it, as in check_cuda.
[[nodiscard]] void* driver_address(std::string_view who, const char* name,
                                   std::source_location where = std::source_location::current());

/// A function of the driver by its type and name:
/// driver_function<decltype(&cuStreamWriteValue32)>(who, "...").
template <class Function>
[[nodiscard]] Function driver_function(
    std::string_view who, const char* name,
    std::source_location where = std::source_location::current()) {
  return reinterpret_cast<Function>(driver_address(who, name, where));
}

}  // namespace hyperslab
