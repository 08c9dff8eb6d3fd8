// SPDX-License-Identifier: Apache-2.0
#include "flight_recorder.hpp"

namespace hyperslab::comm {

FlightRecorder::FlightRecorder(GroupRole group, int leader, Activity& activity)
    : activity_(activity) {
  fixed_.group = group;
  fixed_.leader = leader;
}

CallState FlightRecorder::snapshot() const {
  CallState state = fixed_;
  state.called = called_.load(std::memory_order_relaxed);
  state.awaited = awaited_.load(std::memory_order_relaxed);
  state.last = last_.load(std::memory_order_relaxed);
  state.awaited_kind = awaited_kind_.load(std::memory_order_relaxed);
  state.waits = waits_.load(std::memory_order_relaxed);
  return state;
}

std::shared_ptr<FlightRecorder> FlightRecorders::add(GroupRole group, int leader) {
  auto recorder = std::make_shared<FlightRecorder>(group, leader, activity_);
  const std::lock_guard lock(mutex_);
  std::erase_if(recorders_, [](const auto& each) { return each.expired(); });
  recorders_.push_back(recorder);
  return recorder;
}

std::size_t FlightRecorders::snapshot(std::span<CallState> states) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& each : recorders_) {
    const auto recorder = each.lock();
    if (recorder != nullptr && count < states.size()) states[count++] = recorder->snapshot();
  }
  return count;
}

}  // namespace hyperslab::comm
