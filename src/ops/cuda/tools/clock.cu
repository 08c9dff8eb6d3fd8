// SPDX-License-Identifier: Apache-2.0
#include "common.cuh"

namespace hyperslab::ops::cuda {
namespace {

__device__ std::uint64_t timer_ns() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// Kernels of other streams write the counters, so that they are read afresh.
__device__ std::uint64_t counted_ns(const DeviceClock* clock) {
  const auto* counters = reinterpret_cast<const volatile std::uint64_t* const*>(&clock->counters);
  std::uint64_t sum = 0;
  for (int i = 0; i < DeviceClock::kCounters; ++i) {
    if (counters[i] != nullptr) sum += *counters[i];
  }
  return sum;
}

__global__ void mark_kernel(DeviceClock* clock, int slot) {
  overlap();
  wait_for_earlier();
  const std::uint64_t now = timer_ns();
  if (slot < 0) {
    clock->last_phase_ns = now;
    clock->last_component_ns = now;
    clock->counted_ns = counted_ns(clock);
    return;
  }
  std::uint64_t& last = slot < kPhases ? clock->last_phase_ns : clock->last_component_ns;
  reinterpret_cast<std::uint64_t*>(&clock->ns)[slot] += now - last;
  last = now;
}

__global__ void publish_kernel(DeviceClock* clock, const StepState* state, ClockReading* readings) {
  overlap();
  wait_for_earlier();
  ClockReading* reading = readings + state->input.step % kResultRing;
  auto* from = reinterpret_cast<std::uint64_t*>(&clock->ns);
  auto* to = reinterpret_cast<volatile std::uint64_t*>(&reading->ns);
  for (int i = 0; i < kClockSlots; ++i) {
    to[i] = from[i];
    from[i] = 0;
  }
  const std::uint64_t counted = counted_ns(clock);
  *static_cast<volatile std::uint64_t*>(&reading->counters_ns) = counted - clock->counted_ns;
  clock->counted_ns = counted;
  __threadfence_system();
  *reinterpret_cast<volatile std::int64_t*>(&reading->step) = state->input.step;
}

}  // namespace

void mark_clock(Context& ctx, DeviceClock* clock, int slot) {
  launch_waiting(ctx, "mark_clock", kOneBlock, mark_kernel, {1, 1}, clock, slot);
}

void publish_clock(Context& ctx, DeviceClock* clock, const StepState* state,
                   ClockReading* readings) {
  launch_waiting(ctx, "publish_clock", kOneBlock, publish_kernel, {1, 1}, clock, state, readings);
}

}  // namespace hyperslab::ops::cuda
