// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/activity.hpp"

namespace hyperslab::comm {

/// How far one rank is on one communicator. It goes from rank to rank as it lies in memory.
struct CallState {
  std::array<char, 16> group{};  ///< the communicator's name, cut, with a zero after it
  std::uint64_t called = 0;      ///< number of the newest call
  std::uint64_t awaited = 0;     ///< number of the call that the host waits for
  std::int32_t leader = -1;      ///< world rank of the group's first member
  Call last = Call::barrier;     ///< kind of the newest call
  Call awaited_kind = Call::barrier;
  bool waits = false;
  std::uint8_t unused = 0;
};
static_assert(std::has_unique_object_representations_v<CallState>);

/// The calls of one communicator, noted by the thread that makes them for the one that watches.
class Trail {
 public:
  Trail(const std::string& name, int leader, Activity& activity);

  void called(Call kind, std::uint64_t number) noexcept {
    last_.store(kind, std::memory_order_relaxed);
    called_.store(number, std::memory_order_relaxed);
    activity_.beat();
  }
  void waits(Call kind, std::uint64_t number) noexcept {
    awaited_kind_.store(kind, std::memory_order_relaxed);
    awaited_.store(number, std::memory_order_relaxed);
    waits_.store(true, std::memory_order_relaxed);
  }
  void arrived() noexcept {
    waits_.store(false, std::memory_order_relaxed);
    activity_.beat();
  }
  [[nodiscard]] CallState look() const;

 private:
  CallState fixed_;  ///< name and leader
  Activity& activity_;
  std::atomic<std::uint64_t> called_ = 0;
  std::atomic<std::uint64_t> awaited_ = 0;
  std::atomic<Call> last_ = Call::barrier;
  std::atomic<Call> awaited_kind_ = Call::barrier;
  std::atomic<bool> waits_ = false;
};

/// What a rank does, with the trails of its communicators, which come and go.
class TrailBoard {
 public:
  [[nodiscard]] Activity& activity() { return activity_; }
  /// The trail of a communicator; the board forgets it when the last owner does.
  [[nodiscard]] std::shared_ptr<Trail> add(const std::string& name, int leader);
  /// Those that are alive, in the order in which they came; returns how many were written.
  std::size_t look(std::span<CallState> states);

 private:
  Activity activity_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Trail>> trails_;
};

}  // namespace hyperslab::comm
