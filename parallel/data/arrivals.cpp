// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/data/arrivals.hpp"

#include <algorithm>

namespace hyperslab::data {
namespace {

/// A quarter of what may be under way; at later points of a step no one counts as late.
constexpr std::size_t kMostPoints = comm::Communicator::kMaxUnderWay / 4;

}  // namespace

Arrivals::Point Arrivals::come(Context& ctx, comm::Communicator& group) {
  const comm::Ticket ticket = points_.size() < kMostPoints ? group.arrive(ctx) : 0;
  points_.push_back({&group, ticket});
  return points_.size() - 1;
}

double Arrivals::take_late_seconds(Context& ctx) {
  all_there_.clear();
  for (const auto& [group, ticket] : points_) {
    all_there_.push_back(ticket == 0 ? 0 : group->wait(ctx, ticket));
  }
  double late = 0;
  for (const auto& [point, begin, end] : waits_) {
    late += std::max(0.0, std::min(all_there_[point], end) - begin);
  }
  points_.clear();
  waits_.clear();
  return late;
}

}  // namespace hyperslab::data
