// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace hyperslab {

/// The rest that a limit of this process's address space (RLIMIT_AS, ulimit -v) leaves.
struct AddressSpace {
  std::size_t limit_bytes = 0;
  std::size_t left_bytes = 0;
};

/// None without a limit, or if the system does not report it. May be called before main.
[[nodiscard]] std::optional<AddressSpace> address_space();

/// OpenBLAS takes this for a thread, and again for a product of its own, at once and for good. It
/// waits without end if it cannot.
inline constexpr std::size_t kGemmBufferBytes = std::size_t{128} << 20;

/// "1000 MiB of address space are allowed (ulimit -v), of which 700 MiB are left, and ...", one
/// line for an error: `threads` threads need `needed_bytes`.
[[nodiscard]] std::string address_space_shortage(const AddressSpace& space,
                                                 std::size_t needed_bytes, int threads);

}  // namespace hyperslab
