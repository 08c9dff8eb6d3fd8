// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

inline constexpr int kClockSlots = kPhases + kMaxComponents;

/// Time as the device sees it, kept in device memory: a mark charges the time since the last mark
/// to a slot. Slots: the phases, then the components by index. It also sums the growth of other
/// counters of the device since the step before.
struct DeviceClock {
  static constexpr int kCounters = 2;
  std::array<const std::uint64_t*, kCounters> counters{};  ///< null: none; they only grow
  std::uint64_t counted_ns = 0;  ///< their sum when the step before was published
  std::uint64_t last_phase_ns = 0;
  std::uint64_t last_component_ns = 0;
  std::array<std::uint64_t, kClockSlots> ns{};
};

/// The sums of a step, for the host.
struct ClockReading {
  std::int64_t step = 0;
  std::uint64_t counters_ns = 0;  ///< increase of DeviceClock::counters in the step
  std::array<std::uint64_t, kClockSlots> ns{};
};

/// Enqueues a mark by the device's nanosecond timer. slot < 0: restart, charging and counting
/// nothing of the time before.
void mark_clock(Context& ctx, DeviceClock* clock, int slot);
/// Enqueues readings[step % kResultRing] = sums, and clears them; the step number is written last.
void publish_clock(Context& ctx, DeviceClock* clock, const StepState* state,
                   ClockReading* readings);

}  // namespace hyperslab::ops
