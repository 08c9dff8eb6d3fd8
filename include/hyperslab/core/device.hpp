// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace hyperslab {

/// The device on which views live and ops run. On `meta` nothing is stored or computed: ops only
/// add FLOPs and bytes to the context's ledger, and arenas only measure.
enum class Device : std::uint8_t { cpu, meta, cuda };

/// The memory that holds elements: the device's own, or the host's, which kernels of the device
/// reach, too.
enum class Home : std::uint8_t { device, host };
[[nodiscard]] constexpr std::string_view name_of(Home home) {
  return home == Home::host ? "host" : "device";
}

#ifdef HYPERSLAB_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

[[nodiscard]] std::string_view name_of(Device device);

}  // namespace hyperslab
