// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/arrivals.hpp"

#include <algorithm>

namespace hyperslab::sharding {
namespace {

/// Far fewer than may be in progress in a group, and far more than reductions that a rank has in
/// progress when it waits for one: the wait for the oldest point ends at once.
constexpr std::size_t kMostOpen = 32;

}  // namespace

Arrivals::Point Arrivals::arrive(Context& ctx, comm::Communicator& group) {
  if (points_.size() - closed_ == kMostOpen) close_oldest(ctx);
  points_.push_back({&group, group.arrive(ctx)});
  return points_.size() - 1;
}

void Arrivals::close_oldest(Context& ctx) {
  Arrival& point = points_[closed_++];
  if (point.ticket != 0) point.all_there = point.group->wait(ctx, point.ticket);
}

double Arrivals::take_late_seconds(Context& ctx) {
  while (closed_ < points_.size()) close_oldest(ctx);
  double late = 0;
  for (const auto& [point, begin, end] : waits_) {
    late += std::max(0.0, std::min(points_[point].all_there, end) - begin);
  }
  points_.clear();
  waits_.clear();
  closed_ = 0;
  return late;
}

}  // namespace hyperslab::sharding
