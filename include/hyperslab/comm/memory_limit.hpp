// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace hyperslab::comm {

/// Memory of the host that the control groups of a process allow, as Slurm and containers set it.
struct MemoryLimit {
  std::size_t room_bytes = 0;  ///< limit less use; cached files count as free
  int ranks = 1;               ///< ranks of this host, as the launcher says: they share it
  std::string folder;          ///< folder of the control group with the least room
  [[nodiscard]] std::size_t rank_bytes() const {
    return room_bytes / static_cast<std::size_t>(std::max(ranks, 1));
  }
};

/// From the folder of a process in /proc; none if there is no limit, or the system does not report
/// it.
[[nodiscard]] std::optional<MemoryLimit> memory_limit(
    const std::string& process_folder = "/proc/self");

/// The part of so many bytes of the host that each of the ranks launched on it can take.
[[nodiscard]] std::size_t rank_share(std::size_t host_bytes);

}  // namespace hyperslab::comm
