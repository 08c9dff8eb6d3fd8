// SPDX-License-Identifier: Apache-2.0
#include "device_trace.hpp"

#include <cmath>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/ops/kernel_class.hpp"

namespace hyperslab::run {

void DeviceTrace::start() {
  if (refused_) return;
  try {
    profiler_ = std::make_unique<Profiler>(ctx_.recorder(), Profiler::Watch::timeline,
                                           ops::is_communication);
    profiler_->name_stream(ctx_.stream(), "compute");
    profiler_->name_stream(ctx_.copy_stream(), "copy");
    profiler_->start();
  } catch (const Error& error) {
    refused_ = true;
    profiler_.reset();
    log::warn(std::string("traced steps will not show what the GPU does: ") + error.what());
  }
}

std::vector<DeviceEvent> DeviceTrace::finish() {
  const std::unique_ptr<Profiler> profiler = std::move(profiler_);
  if (!profiler) return {};
  try {
    profiler->stop();
    return profiler->events();
  } catch (const Error& error) {
    log::warn(std::string("what the GPU did in a traced step is lost: ") + error.what());
    return {};
  }
}

std::vector<TraceOperation> operations_on_device(const std::vector<TraceOperation>& operations,
                                                 const std::vector<DeviceEvent>& events,
                                                 double step_start) {
  std::vector<TraceOperation> timed = operations;
  for (TraceOperation& each : timed) each.call_seconds = each.end_seconds = std::nan("");
  for (const DeviceEvent& event : events) {
    if (event.operation < 0) continue;
    TraceOperation& operation = timed.at(static_cast<std::size_t>(event.operation));
    // The smaller and the larger of the two, and the other one if one is NaN.
    operation.call_seconds = std::fmin(operation.call_seconds, event.begin_seconds - step_start);
    operation.end_seconds = std::fmax(operation.end_seconds, event.end_seconds - step_start);
  }
  std::erase_if(timed, [](const TraceOperation& each) { return std::isnan(each.end_seconds); });
  return timed;
}

}  // namespace hyperslab::run
