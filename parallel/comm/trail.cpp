// SPDX-License-Identifier: Apache-2.0
#include "trail.hpp"

namespace hyperslab::comm {

Trail::Trail(const std::string& name, int leader, Activity& activity) : activity_(activity) {
  name.copy(fixed_.group.data(), fixed_.group.size() - 1);
  fixed_.leader = leader;
}

CallState Trail::look() const {
  CallState state = fixed_;
  state.called = called_.load(std::memory_order_relaxed);
  state.awaited = awaited_.load(std::memory_order_relaxed);
  state.last = last_.load(std::memory_order_relaxed);
  state.awaited_kind = awaited_kind_.load(std::memory_order_relaxed);
  state.waits = waits_.load(std::memory_order_relaxed);
  return state;
}

std::shared_ptr<Trail> TrailBoard::add(const std::string& name, int leader) {
  auto trail = std::make_shared<Trail>(name, leader, activity_);
  const std::lock_guard lock(mutex_);
  std::erase_if(trails_, [](const auto& each) { return each.expired(); });
  trails_.push_back(trail);
  return trail;
}

std::size_t TrailBoard::look(std::span<CallState> states) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& each : trails_) {
    const auto trail = each.lock();
    if (trail != nullptr && count < states.size()) states[count++] = trail->look();
  }
  return count;
}

}  // namespace hyperslab::comm
