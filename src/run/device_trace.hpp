// SPDX-License-Identifier: Apache-2.0
// The activity of a GPU in traced steps, as CUPTI reports it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hyperslab/core/profiler.hpp"

namespace hyperslab::run {

/// Watches the device from start() to finish(). It holds CUPTI only in between, which slows down
/// the host's calls.
class DeviceTrace {
 public:
  /// The context must outlive it.
  explicit DeviceTrace(Context& ctx) : ctx_(ctx) {}

  /// If CUPTI is missing or refuses, a warning says so, and nothing is watched from then on.
  void start();
  /// The work of the device since start(), after its end; empty if it was not watched.
  [[nodiscard]] std::vector<DeviceEvent> finish();

 private:
  Context& ctx_;
  std::unique_ptr<Profiler> profiler_;
  bool refused_ = false;
};

/// Operations that began on the device, with their times there: an operation is called when its
/// first kernel begins, which is when the computation before it has ended, and ends with its last
/// one. `operations`: of the recorder, which `events` point to; `step_start`: of it, too.
/// wait_seconds stays NaN: a stream waits for an operation, not the host.
[[nodiscard]] std::vector<TraceOperation> operations_on_device(
    const std::vector<TraceOperation>& operations, const std::vector<DeviceEvent>& events,
    double step_start);

}  // namespace hyperslab::run
