// SPDX-License-Identifier: Apache-2.0
#include "group_meter.hpp"

#include <limits>
#include <numeric>

#include "hyperslab/core/error.hpp"

namespace hyperslab::train {

GroupMeter::GroupMeter(const mesh::Mesh& mesh) : mesh_(mesh), groups_(mesh.groups()) {
  groups_.push_back(&mesh.group(mesh::kWorld));
  require(groups_.size() <= io::kMostGroups, "a rank is in more groups than its timing file takes");
}

GroupMeter::~GroupMeter() {
  for (comm::Communicator* group : groups_) group->record_operations(nullptr);
}

void GroupMeter::record_operations(Recorder& recorder) {
  for (comm::Communicator* group : groups_) group->record_operations(&recorder);
}

GroupMeter::Totals GroupMeter::totals() const {
  Totals all{};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const comm::Traffic& traffic = groups_[i]->traffic();
    const auto sum = [](const auto& counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    all[i] = {{sum(traffic.calls), sum(traffic.bytes), traffic.seconds, traffic.exposed_seconds,
               traffic.call_moments},
              traffic.stamped};
  }
  return all;
}

void GroupMeter::begin_step() {
  begin_ = totals();
  synchronized_ = mesh_.group(mesh::kWorld).traffic().newest_end;
}

void GroupMeter::collect() {
  for (comm::Communicator* group : groups_) (void)group->collect_seconds();
}

void GroupMeter::end_step(std::int64_t step) {
  collect();
  io::GroupTraffics& mine = steps_[static_cast<std::size_t>(step % ops::kResultRing)];
  const Totals end = totals();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& [begun, stamped_before] = begin_[i];
    const std::int64_t stamped = end[i].stamped - stamped_before;
    mine[i] = end[i].traffic;
    mine[i].calls -= begun.calls;
    mine[i].bytes -= begun.bytes;
    mine[i].seconds -= begun.seconds;
    mine[i].exposed_seconds -= begun.exposed_seconds;
    mine[i].arrival_seconds =
        stamped == 0 || synchronized_ == 0
            ? std::numeric_limits<double>::quiet_NaN()
            : (mine[i].arrival_seconds - begun.arrival_seconds) / static_cast<double>(stamped) -
                  synchronized_;
  }
}

std::vector<io::GroupInfo> GroupMeter::groups() const {
  std::vector<io::GroupInfo> all;
  all.reserve(groups_.size());
  for (const comm::Communicator* group : groups_) {
    all.push_back({group->role(), group->size(), mesh_.members(group->role())});
  }
  return all;
}

}  // namespace hyperslab::train
