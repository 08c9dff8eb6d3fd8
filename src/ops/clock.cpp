// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/clock.hpp"

#include "backend.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {

void mark_clock(Context& ctx, DeviceClock* clock, int slot) {
  require(slot < kClockSlots, "mark_clock slot: there is no such slot");
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::mark_clock(ctx, clock, slot);
  }
  require(clock == nullptr, "mark_clock: only a GPU has a clock of its own");
}

void publish_clock(Context& ctx, DeviceClock* clock, const StepState* state,
                   ClockReading* readings) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::publish_clock(ctx, clock, state, readings);
  }
  require(clock == nullptr, "publish_clock: only a GPU has a clock of its own");
}

}  // namespace hyperslab::ops
