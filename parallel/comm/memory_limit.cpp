// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/memory_limit.hpp"

#include <cstdint>
#include <fstream>

#include "control_groups.hpp"
#include "cores.hpp"

namespace hyperslab::comm {
namespace {

/// A number alone in a file; none for "max" or no file.
std::optional<std::uint64_t> bytes_in(const std::string& path) {
  std::uint64_t bytes = 0;
  if (!(std::ifstream(path) >> bytes)) return std::nullopt;
  return bytes;
}

/// Bytes of cached files, which the system gives up when memory is short.
std::uint64_t cached_in(const ControlGroup& group) {
  const std::string prefix = group.second_version ? "" : "total_";  // with the groups below
  std::uint64_t cached = 0;
  std::ifstream file(group.folder + "/memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;) {
    if (name == prefix + "active_file" || name == prefix + "inactive_file") cached += bytes;
  }
  return cached;
}

/// None without a limit; version 1 writes the largest number of pages for none.
std::optional<std::uint64_t> room_in(const ControlGroup& group) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;
  const bool second = group.second_version;
  const std::string folder = group.folder + "/memory.";
  const auto limit = bytes_in(folder + (second ? "max" : "limit_in_bytes"));
  const auto used = bytes_in(folder + (second ? "current" : "usage_in_bytes"));
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  const std::uint64_t kept = *used - std::min(*used, cached_in(group));
  return *limit - std::min(*limit, kept);
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const std::string& process_folder) {
  std::optional<MemoryLimit> least;
  for (const ControlGroup& group : control_groups("memory", process_folder)) {
    const auto room = room_in(group);
    if (!room || (least && least->room_bytes <= *room)) continue;
    least = MemoryLimit{static_cast<std::size_t>(*room), std::max(launched_ranks_here(), 1),
                        group.folder};
  }
  return least;
}

std::size_t rank_share(std::size_t host_bytes) {
  return host_bytes / static_cast<std::size_t>(std::max(launched_ranks_here(), 1));
}

}  // namespace hyperslab::comm
