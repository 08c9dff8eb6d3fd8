// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::dp {

/// Tells waiting for members of a group that are late from waiting for what the group moves: the
/// first ends when the last member has come to the point at which all wait. On the CPU; elsewhere
/// members cannot tell when they come, and nothing counts as late. Few of the group's operations
/// are under way for it, however many points a step has. Allocates nothing once it has seen a
/// step's most points and waits.
class Arrivals {
 public:
  /// Index of a point among those of a step.
  using Point = std::size_t;

  /// This member has come to a point of `group`, where it will wait for others; collective. Asks
  /// after the oldest points first if too many are open: all members have long come to those.
  Point come(Context& ctx, comm::Communicator& group);
  /// It waited from `begin` to `end`, on the monotonic clock, after it came to `point`.
  void waited(Point point, double begin, double end) { waits_.push_back({point, begin, end}); }
  /// Of all waits the seconds until the last member of the group had come to their point; blocks
  /// until it has, and forgets points and waits.
  [[nodiscard]] double take_late_seconds(Context& ctx);

 private:
  struct Coming {
    comm::Communicator* group = nullptr;
    comm::Ticket ticket = 0;
    double all_there = 0;  ///< when the last member had come; 0 if no one can tell
  };
  struct Wait {
    Point point = 0;
    double begin = 0;
    double end = 0;
  };
  void close_oldest(Context& ctx);

  std::vector<Coming> points_;
  std::vector<Wait> waits_;
  std::size_t closed_ = 0;  ///< so many points, the oldest ones, know when all were there
};

}  // namespace hyperslab::dp
