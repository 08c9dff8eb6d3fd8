// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::data {

/// Tells waiting for members of a group that are late from waiting for what the group moves: the
/// first ends when the last member has come to the point at which all wait. On the CPU; elsewhere
/// members cannot tell when they come, and nothing counts as late. Allocates nothing once it has
/// seen a step's most points and waits.
class Arrivals {
 public:
  /// A place in the order of the points of a step.
  using Point = std::size_t;

  /// This member has come to a point of `group`, where it will wait for others; collective, never
  /// blocks.
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
  };
  struct Wait {
    Point point = 0;
    double begin = 0;
    double end = 0;
  };
  std::vector<Coming> points_;
  std::vector<Wait> waits_;
  std::vector<double> all_there_;  ///< when, for each point
};

}  // namespace hyperslab::data
