// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::sharding {

/// Separates two kinds of waiting for a group: for members that are late, and for the data that it
/// moves. The first ends when the last member has arrived at the point at which all wait. On the
/// CPU only: on other devices arrivals are not announced, and nothing counts as late. Has few
/// operations of the group in progress, however many points a step has. Allocates nothing once it
/// has seen a step's most points and waits.
class Arrivals {
 public:
  /// Index of a point among a step's points.
  using Point = std::size_t;

  /// This member has arrived at a point of `group`, where it will wait for others; collective. If
  /// too many points are open it first waits for the oldest, which all members passed long ago.
  Point arrive(Context& ctx, comm::Communicator& group);
  /// It waited from `begin` to `end`, on the monotonic clock, after it arrived at `point`.
  void waited(Point point, double begin, double end) { waits_.push_back({point, begin, end}); }
  /// Seconds of all waits before the last member had arrived at their point; blocks until it has,
  /// and forgets points and waits.
  [[nodiscard]] double take_late_seconds(Context& ctx);

 private:
  struct Arrival {
    comm::Communicator* group = nullptr;
    comm::Ticket ticket = 0;
    double all_there = 0;  ///< when the last member arrived; 0: not known
  };
  struct Wait {
    Point point = 0;
    double begin = 0;
    double end = 0;
  };
  void close_oldest(Context& ctx);

  std::vector<Arrival> points_;
  std::vector<Wait> waits_;
  std::size_t closed_ = 0;  ///< so many points, the oldest ones, have all_there
};

}  // namespace hyperslab::sharding
