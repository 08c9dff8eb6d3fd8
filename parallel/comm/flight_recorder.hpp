// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/activity.hpp"

namespace hyperslab::comm {

/// The progress of one rank on one communicator. It is sent to other ranks byte by byte.
struct CallState {
  std::uint64_t called = 0;   ///< number of the newest call
  std::uint64_t awaited = 0;  ///< number of the call that the host waits for
  std::int32_t leader = -1;   ///< world rank of the group's first member
  GroupRole group = GroupRole::other;
  Call last = Call::barrier;  ///< kind of the newest call
  Call awaited_kind = Call::barrier;
  bool waits = false;
};
static_assert(std::has_unique_object_representations_v<CallState>);

/// Records the calls of one communicator: the thread that makes them writes, the watchdog's reads.
class FlightRecorder {
 public:
  FlightRecorder(GroupRole group, int leader, Activity& activity);

  void called(Call kind, std::uint64_t number) noexcept {
    last_.store(kind, std::memory_order_relaxed);
    called_.store(number, std::memory_order_relaxed);
    activity_.beat();
  }
  void wait_begins(Call kind, std::uint64_t number) noexcept {
    awaited_kind_.store(kind, std::memory_order_relaxed);
    awaited_.store(number, std::memory_order_relaxed);
    waits_.store(true, std::memory_order_relaxed);
  }
  void wait_ends() noexcept {
    waits_.store(false, std::memory_order_relaxed);
    activity_.beat();
  }
  [[nodiscard]] CallState snapshot() const;

 private:
  CallState fixed_;  ///< group and leader
  Activity& activity_;
  std::atomic<std::uint64_t> called_ = 0;
  std::atomic<std::uint64_t> awaited_ = 0;
  std::atomic<Call> last_ = Call::barrier;
  std::atomic<Call> awaited_kind_ = Call::barrier;
  std::atomic<bool> waits_ = false;
};

/// A rank's activity and the flight recorders of its communicators, which come and go.
class FlightRecorders {
 public:
  [[nodiscard]] Activity& activity() { return activity_; }
  /// A recorder for a new communicator; it is listed as long as someone owns it.
  [[nodiscard]] std::shared_ptr<FlightRecorder> add(GroupRole group, int leader);
  /// The states of those listed, oldest first, as many as fit; returns how many were written.
  std::size_t snapshot(std::span<CallState> states);

 private:
  Activity activity_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<FlightRecorder>> recorders_;
};

}  // namespace hyperslab::comm
