// SPDX-License-Identifier: Apache-2.0
// Which groups and ranks are slow, from the times that all ranks measured.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/plan/machine_file.hpp"

namespace hyperslab::run {

/// The times that one rank measured.
struct RankTimes {
  std::string host;
  std::string device;
  double product_seconds = 0;  ///< time of a fixed matrix product
  struct Group {
    comm::GroupRole role;
    int leader = 0;      ///< the world rank of its first member, which identifies the group
    double seconds = 0;  ///< time of an all_reduce
  };
  std::vector<Group> groups;
};

/// One line for the log: the rate of each kind of group.
[[nodiscard]] std::string link_summary(std::span<const RankTimes> ranks, double bytes);

/// A line for every group that reaches less than half of the machine file's rate, or,
/// without one (null), of the median of the groups of its kind. `bytes`: of the all_reduce. Throws
/// Error(usage) if the machine file has no all_reduce.
[[nodiscard]] std::vector<std::string> slow_groups(std::span<const RankTimes> ranks, double bytes,
                                                   const plan::MachineFile* machine);

/// A line for every rank that computes at less than 0.7 of the median rate.
[[nodiscard]] std::vector<std::string> slow_ranks(std::span<const RankTimes> ranks);

}  // namespace hyperslab::run
