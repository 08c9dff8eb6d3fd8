// SPDX-License-Identifier: Apache-2.0
#include "snapshot_room.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/profiler.hpp"

namespace hyperslab::run {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr double kMostOfFreeMemory = 0.5;

}  // namespace

std::string shortage(const SnapshotRoom& room) {
  const auto bytes = static_cast<double>(room.bytes);
  const auto free = static_cast<double>(room.free_bytes);
  const int times = room.ranks * room.copies;
  if (times * bytes <= kMostOfFreeMemory * free) return "";
  return fmt::format("host {} has {:.0f} MiB free, half of which is less than {} x {:.0f} MiB",
                     room.host, free / kMebibyte, times, bytes / kMebibyte);
}

int copies_in_memory(const io::CheckpointConfig& config, bool has_other_hosts) {
  if (config.memory_every == 0) return 1;
  return has_other_hosts ? 5 : 3;
}

std::unique_ptr<train::SnapshotBuffer> make_snapshot_buffer(const Start& start,
                                                            train::Trainer& trainer) {
  const io::CheckpointConfig& config = start.config.checkpoint;
  if (!config.async || (config.every == 0 && config.memory_every == 0)) return nullptr;
  comm::World& world = start.world;
  const auto mine = static_cast<std::int64_t>(trainer.state().checkpoint_bytes());
  SnapshotRoom room;
  room.host = world.host();
  room.bytes = world.max(mine);
  room.ranks = world.local_size();
  room.copies = copies_in_memory(config, world.max(world.local_size()) < world.size());
  room.free_bytes = static_cast<std::int64_t>(device_memory(Device::cpu).free);
  const std::vector<std::string> all = world.all_gather(shortage(room));
  const auto first = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  if (first == all.end()) {
    return std::make_unique<train::SnapshotBuffer>(trainer.context().device(),
                                                   static_cast<std::size_t>(mine));
  }
  if (start.is_first()) {
    log::warn(
        fmt::format("checkpoints are written within steps, in pieces, not beside training{}: "
                    "{}",
                    config.memory_every > 0 ? ", and none in memory" : "", *first));
  }
  return nullptr;
}

}  // namespace hyperslab::run
