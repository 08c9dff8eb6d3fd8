// SPDX-License-Identifier: Apache-2.0
#include "group_meter.hpp"

#include <numeric>

#include "hyperslab/core/error.hpp"

namespace hyperslab::train {

GroupMeter::GroupMeter(const mesh::Mesh& mesh) : groups_(mesh.groups()) {
  groups_.push_back(&mesh.world_group());
  require(groups_.size() <= io::kMostGroups, "a rank is in more groups than its timing file takes");
}

io::GroupTraffics GroupMeter::totals() const {
  io::GroupTraffics all{};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& [calls, bytes, seconds, exposed_seconds] = groups_[i]->traffic();
    all[i] = {std::accumulate(calls.begin(), calls.end(), std::int64_t{0}),
              std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), seconds,
              exposed_seconds};
  }
  return all;
}

void GroupMeter::begin_step() { begin_ = totals(); }

void GroupMeter::collect() {
  for (comm::Communicator* group : groups_) (void)group->collect_seconds();
}

void GroupMeter::end_step(std::int64_t step) {
  collect();
  io::GroupTraffics& mine = steps_[static_cast<std::size_t>(step % ops::kResultRing)];
  mine = totals();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    mine[i].calls -= begin_[i].calls;
    mine[i].bytes -= begin_[i].bytes;
    mine[i].seconds -= begin_[i].seconds;
    mine[i].exposed_seconds -= begin_[i].exposed_seconds;
  }
}

std::vector<io::GroupInfo> GroupMeter::groups() const {
  std::vector<io::GroupInfo> all;
  for (const comm::Communicator* group : groups_) all.push_back({group->role(), group->size()});
  return all;
}

}  // namespace hyperslab::train
