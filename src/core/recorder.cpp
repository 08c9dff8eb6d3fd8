// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/recorder.hpp"

#include <algorithm>
#include <chrono>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

constexpr std::size_t kMostIntervals = 256;  // kept apart within a step

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::other: return "other";
    case Phase::data: return "data";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::optimizer: return "optimizer";
    case Phase::reduce_exposed: return "reduce_exposed";
    case Phase::tensor_comm: return "tensor_comm";
    case Phase::context_comm: return "context_comm";
    case Phase::expert_comm: return "expert_comm";
    case Phase::pipeline_comm: return "pipeline_comm";
    case Phase::pipeline_idle: return "pipeline_idle";
    case Phase::wait: return "wait";
    case Phase::checkpoint: return "checkpoint";
  }
  return "?";
}

double now_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void StepTimes::move(Phase from, Phase to, double seconds) {
  double& source = phase_seconds[static_cast<std::size_t>(from)];
  const double moved = std::clamp(seconds, 0.0, source);
  source -= moved;
  phase_seconds[static_cast<std::size_t>(to)] += moved;
}

void StepTimes::bound_exposed() {
  move(Phase::reduce_exposed, Phase::wait, phase(Phase::reduce_exposed) - reduce_busy_seconds);
}

Recorder::Recorder(std::size_t trace_capacity) {
  events_.reserve(trace_capacity);
  operations_.reserve(trace_capacity);
  messages_.reserve(trace_capacity);
  reducing_.reserve(kMostIntervals);
}

void Recorder::begin_step(std::int64_t step, bool traced) {
  times_ = {};
  times_.step = step;
  traced_ = traced;
  events_.clear();
  operations_.clear();
  messages_.clear();
  lost_ = 0;
  reducing_.clear();
  counted_until_ = 0;
  phase_depth_ = 0;
  component_depth_ = 0;
  phases_[0] = Phase::other;
  components_[0] = {};
  set_microbatch(-1);
  if (activity_ != nullptr) {
    activity_->begin_step(step);
    activity_->enter(Phase::other);
  }
  step_start_ = now_seconds();
  phase_mark_ = component_mark_ = step_start_;
}

const StepTimes& Recorder::end_step() {
  const double now = now_seconds();
  charge_phase(now);
  charge_component(now);
  times_.step_seconds = now - step_start_;
  for (const Interval& each : reducing_) times_.reduce_busy_seconds += each.end - each.start;
  reducing_.clear();
  times_.bound_exposed();
  return times_;
}

void Recorder::charge_phase(double now) {
  if (timer_ != nullptr) return timer_->charge(static_cast<int>(phase()));
  times_.phase_seconds[static_cast<std::size_t>(phase())] += now - phase_mark_;
  phase_mark_ = now;
}

void Recorder::charge_component(double now) {
  if (timer_ != nullptr) {
    if (timer_components_) timer_->charge(kPhases + component().index);
    return;
  }
  times_.component_seconds[component().index] += now - component_mark_;
  component_mark_ = now;
}

void Recorder::enter(Phase phase) {
  const double now = now_seconds();
  if (has_ranges_) nvtx::push(name_of(phase));
  // On a device a mark is a launch; the time between two phases goes to the later one instead.
  if (timer_ == nullptr || phase_depth_ > 0) charge_phase(now);
  require(phase_depth_ + 1 < kMaxDepth, "phases are nested too deeply");
  const auto depth = static_cast<std::size_t>(++phase_depth_);
  phases_[depth] = phase;
  phase_entered_[depth] = now;
  if (activity_ != nullptr) activity_->enter(phase);
}

void Recorder::leave_phase() {
  const double now = now_seconds();
  charge_phase(now);
  if (has_ranges_) nvtx::pop();
  const auto depth = static_cast<std::size_t>(phase_depth_--);
  add_event(name_of(phases_[depth]), "compute", phase_entered_[depth], now);
  if (activity_ != nullptr) activity_->enter(this->phase());
}

void Recorder::enter(const Component& component) {
  const double now = now_seconds();
  if (has_ranges_) nvtx::push(component.name);
  charge_component(now);
  require(component_depth_ + 1 < kMaxDepth, "components are nested too deeply");
  require(component.index < kMaxComponents, "the index of a component is too large");
  const auto depth = static_cast<std::size_t>(++component_depth_);
  components_[depth] = component;
  component_entered_[depth] = now;
}

void Recorder::leave_component() {
  const double now = now_seconds();
  charge_component(now);
  if (has_ranges_) nvtx::pop();
  const auto depth = static_cast<std::size_t>(component_depth_--);
  add_event(components_[depth].name, "compute", component_entered_[depth], now);
}

void Recorder::add_reduction(double start_seconds, double end_seconds) {
  times_.reduce_seconds += end_seconds - start_seconds;
  cover(start_seconds, end_seconds);
  add_event("reduce", "data", start_seconds, end_seconds);
}

/// Joins the interval with those that it meets. If there are too many, the oldest is counted, and
/// later ones count only after its end.
void Recorder::cover(double start, double end) {
  start = std::max(start, counted_until_);
  if (start >= end) return;
  const auto first = std::ranges::lower_bound(reducing_, start, {}, &Interval::end);
  auto last = first;
  for (; last != reducing_.end() && last->start <= end; ++last) {
    start = std::min(start, last->start);
    end = std::max(end, last->end);
  }
  if (first != last) {
    *first = {start, end};
    reducing_.erase(first + 1, last);
    return;
  }
  reducing_.insert(first, {start, end});
  if (reducing_.size() < kMostIntervals) return;
  times_.reduce_busy_seconds += reducing_.front().end - reducing_.front().start;
  counted_until_ = reducing_.front().end;
  reducing_.erase(reducing_.begin());
}

/// Storage is fixed: records that do not fit are counted.
template <class Record>
void Recorder::keep(std::vector<Record>& records, const Record& record) {
  if (records.size() == records.capacity()) {
    ++lost_;
  } else {
    records.push_back(record);
  }
}

void Recorder::add_event(std::string_view name, std::string_view stream, double start, double end) {
  if (!traced_) return;
  keep(events_, {name, stream, microbatch_, start - step_start_, end - step_start_});
}

void Recorder::add_operation(const TraceOperation& operation) {
  if (!traced_) return;
  TraceOperation kept = operation;
  kept.microbatch = microbatch_;
  for (double* seconds : {&kept.call_seconds, &kept.wait_seconds, &kept.end_seconds}) {
    *seconds -= step_start_;
  }
  keep(operations_, kept);
}

void Recorder::add_message(const TraceMessage& message) {
  if (traced_) keep(messages_, message);
}

}  // namespace hyperslab
