// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace hyperslab {

enum class Phase : std::uint8_t;

/// The present work of this rank, for a thread that watches it. The thread that does the work
/// writes relaxed atomics, without locks, calls or memory. The fields need not be consistent.
struct Activity {
  std::atomic<std::uint64_t> beats = 0;        ///< grows with everything that gets done
  std::atomic<std::int64_t> step = 0;          ///< in progress; 0: before the first
  std::atomic<std::int64_t> ended_step = 0;    ///< the newest whose result the host has read
  std::atomic<std::int64_t> awaited_step = 0;  ///< step whose result the host waits for; 0: none
  std::atomic<std::int32_t> microbatch = -1;   ///< -1: none
  std::atomic<std::int32_t> pauses = 0;        ///< Pause objects alive
  std::atomic<const char*> pause = nullptr;    ///< reason of the newest Pause with one
  std::atomic<Phase> phase = Phase{};

  void beat() noexcept { beats.fetch_add(1, std::memory_order_relaxed); }
  void begin_step(std::int64_t number) noexcept {
    step.store(number, std::memory_order_relaxed);
    beat();
  }
  void enter(Phase now) noexcept {
    phase.store(now, std::memory_order_relaxed);
    beat();
  }
};

/// For the life of the object this rank does something of its own that may take long without a
/// beat, such as reading a large file: as long as its process answers, ten times the timeout is
/// allowed. `what`: "reading token files", a literal.
class Pause {
 public:
  explicit Pause(Activity& activity, const char* what = nullptr) : activity_(activity) {
    if (what != nullptr) activity_.pause = what;
    activity_.pauses.fetch_add(1);
  }
  ~Pause() {
    activity_.beat();
    activity_.pauses.fetch_sub(1);
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  Pause(Pause&&) = delete;
  Pause& operator=(Pause&&) = delete;

 private:
  Activity& activity_;
};

}  // namespace hyperslab
