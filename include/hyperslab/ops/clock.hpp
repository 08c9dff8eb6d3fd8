// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

inline constexpr int kClockSlots = kPhases + kComponents;

/// Time as the device sees it, kept in device memory: a mark charges what passed since the last
/// mark to a slot. Slots: the phases, then the components.
struct DeviceClock {
  std::uint64_t last_phase_ns = 0;
  std::uint64_t last_component_ns = 0;
  std::array<std::uint64_t, kClockSlots> ns{};
};

/// The sums of a step, for the host.
struct ClockReading {
  std::int64_t step = 0;
  std::array<std::uint64_t, kClockSlots> ns{};
};

/// Enqueues a mark by the device's nanosecond timer. slot < 0: restart, charging nothing.
void mark_clock(Context& ctx, DeviceClock* clock, int slot);
/// Enqueues readings[step % kResultRing] = sums, and clears them; the step number is written last.
void publish_clock(Context& ctx, DeviceClock* clock, const StepState* state,
                   ClockReading* readings);

}  // namespace hyperslab::ops
