// SPDX-License-Identifier: Apache-2.0
// Memory of the host that processes share, and ranks that need more of it together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"

namespace hyperslab::comm {

/// Memory of a host: all of it, or what a control group allows, as Slurm and containers set it.
struct MemoryLimit {
  std::size_t room_bytes = 0;  ///< that can still be taken; cached files count as free
  std::string id;              ///< without spaces; equal for all processes that share the memory
  std::string place;           ///< "on host n1" or "in control group /sys/fs/cgroup/job"
};

/// The host's memory, then that of each control group with a limit that a process is in or below.
/// `host`: its name. The groups are those of the process with this folder in /proc.
[[nodiscard]] std::vector<MemoryLimit> memory_limits(
    const std::string& host, const std::string& process_folder = "/proc/self");

/// The memory that a rank needs, and the limits that it is under.
struct MemoryNeed {
  std::size_t bytes = 0;
  std::vector<MemoryLimit> limits;
};

/// A limit that ranks go beyond together.
struct MemoryShortage {
  MemoryLimit limit;             ///< with the least room that one of the ranks saw
  int ranks = 0;                 ///< under this limit
  std::size_t needed_bytes = 0;  ///< which they need together
  int fullest_rank = 0;
  std::size_t fullest_bytes = 0;
  /// The part of the room that the fullest rank would have if all took less in proportion.
  [[nodiscard]] std::size_t fullest_room() const;
};

/// The limit that the ranks, in their order, exceed by the largest factor; none: all fit.
[[nodiscard]] std::optional<MemoryShortage> memory_shortage(const std::vector<MemoryNeed>& ranks);

/// That of all ranks, on every rank, from each rank's need. Collective.
[[nodiscard]] std::optional<MemoryShortage> memory_shortage(Peers& peers, const MemoryNeed& mine);

/// The part of so many bytes of the host that each of the ranks launched on it can take.
[[nodiscard]] std::size_t rank_share(std::size_t host_bytes);

}  // namespace hyperslab::comm
