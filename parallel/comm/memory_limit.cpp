// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/memory_limit.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>

#include "control_groups.hpp"
#include "cores.hpp"
#include "host_id.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/profiler.hpp"

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

/// Equal for processes that see the same folder, under whatever path.
std::string folder_id(const std::string& folder) {
  struct stat about {};
  if (stat(folder.c_str(), &about) != 0) return folder;
  return fmt::format("{}:{}", about.st_dev, about.st_ino);
}

/// A line for the bytes and one for each limit.
std::string to_text(const MemoryNeed& need) {
  std::string text = fmt::format("{}\n", need.bytes);
  for (const MemoryLimit& limit : need.limits) {
    text += fmt::format("{} {} {}\n", limit.room_bytes, limit.id, limit.place);
  }
  return text;
}

MemoryNeed need_in(const std::string& text) {
  MemoryNeed need;
  std::istringstream in(text);
  require(static_cast<bool>(in >> need.bytes), "the memory that a rank needs");
  for (MemoryLimit limit; in >> limit.room_bytes >> limit.id >> std::ws;) {
    std::getline(in, limit.place);
    need.limits.push_back(limit);
  }
  return need;
}

bool is_exceeded(const MemoryShortage& shortage) {
  return shortage.needed_bytes > shortage.limit.room_bytes;
}

/// The room of a limit as a part of what is needed of it.
double room_share(const MemoryShortage& shortage) {
  return static_cast<double>(shortage.limit.room_bytes) /
         static_cast<double>(shortage.needed_bytes);
}

void add(const MemoryNeed& need, int rank, const MemoryLimit& limit, MemoryShortage& to) {
  if (to.ranks == 0 || limit.room_bytes < to.limit.room_bytes) to.limit = limit;
  if (to.ranks == 0 || need.bytes > to.fullest_bytes) {
    to.fullest_rank = rank;
    to.fullest_bytes = need.bytes;
  }
  ++to.ranks;
  to.needed_bytes += need.bytes;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& host, const std::string& process_folder) {
  const std::string machine = machine_id(host);
  std::vector<MemoryLimit> limits = {{device_memory(Device::cpu).free, machine, "on host " + host}};
  for (const ControlGroup& group : control_groups("memory", process_folder)) {
    const auto room = room_in(group);
    if (!room) continue;
    limits.push_back({static_cast<std::size_t>(*room), machine + ":" + folder_id(group.folder),
                      fmt::format("in control group {} of host {}", group.folder, host)});
  }
  return limits;
}

std::size_t MemoryShortage::fullest_room() const {
  return static_cast<std::size_t>(room_share(*this) * static_cast<double>(fullest_bytes));
}

std::optional<MemoryShortage> memory_shortage(const std::vector<MemoryNeed>& ranks) {
  std::map<std::string, MemoryShortage> of_limits;
  int rank = 0;
  for (const MemoryNeed& need : ranks) {
    for (const MemoryLimit& limit : need.limits) add(need, rank, limit, of_limits[limit.id]);
    ++rank;
  }
  std::optional<MemoryShortage> worst;
  for (const auto& [id, found] : of_limits) {
    if (!is_exceeded(found)) continue;
    if (!worst || room_share(found) < room_share(*worst)) worst = found;
  }
  return worst;
}

std::optional<MemoryShortage> memory_shortage(Peers& peers, const MemoryNeed& mine) {
  std::vector<MemoryNeed> ranks;
  for (const std::string& text : peers.all_gather(to_text(mine))) ranks.push_back(need_in(text));
  return memory_shortage(ranks);
}

std::size_t rank_share(std::size_t host_bytes) {
  return host_bytes / static_cast<std::size_t>(std::max(launched_ranks_here(), 1));
}

}  // namespace hyperslab::comm
