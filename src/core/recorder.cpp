// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/recorder.hpp"

#include <chrono>

#include "hyperslab/core/error.hpp"

namespace hyperslab {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::other: return "other";
    case Phase::data: return "data";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::optimizer: return "optimizer";
    case Phase::reduce_exposed: return "reduce_exposed";
    case Phase::tensor_comm: return "tensor_comm";
    case Phase::pipeline_comm: return "pipeline_comm";
    case Phase::pipeline_idle: return "pipeline_idle";
    case Phase::checkpoint: return "checkpoint";
  }
  return "?";
}

std::string_view name_of(Component component) {
  switch (component) {
    case Component::other: return "other";
    case Component::embedding: return "embedding";
    case Component::attention: return "attention";
    case Component::ffn: return "ffn";
    case Component::norms: return "norms";
    case Component::head: return "head";
    case Component::optimizer: return "optimizer";
    case Component::communication: return "communication";
  }
  return "?";
}

double now_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Recorder::Recorder(std::size_t trace_capacity) { events_.reserve(trace_capacity); }

void Recorder::begin_step(std::int64_t step, bool traced) {
  times_ = {};
  times_.step = step;
  traced_ = traced;
  events_.clear();
  phase_depth_ = 0;
  component_depth_ = 0;
  phases_[0] = Phase::other;
  components_[0] = Component::other;
  microbatch_ = -1;
  step_start_ = now_seconds();
  phase_mark_ = component_mark_ = step_start_;
}

const StepTimes& Recorder::end_step() {
  const double now = now_seconds();
  charge_phase(now);
  charge_component(now);
  times_.step_seconds = now - step_start_;
  return times_;
}

void Recorder::charge_phase(double now) {
  if (timer_ != nullptr) return timer_->charge(static_cast<int>(phase()));
  times_.phase_seconds[static_cast<std::size_t>(phase())] += now - phase_mark_;
  phase_mark_ = now;
}

void Recorder::charge_component(double now) {
  if (timer_ != nullptr) {
    if (timer_components_) timer_->charge(kPhases + static_cast<int>(component()));
    return;
  }
  times_.component_seconds[static_cast<std::size_t>(component())] += now - component_mark_;
  component_mark_ = now;
}

void Recorder::enter(Phase phase) {
  const double now = now_seconds();
  charge_phase(now);
  require(phase_depth_ + 1 < kMaxDepth, "phases are nested too deeply");
  const auto depth = static_cast<std::size_t>(++phase_depth_);
  phases_[depth] = phase;
  phase_entered_[depth] = now;
}

void Recorder::leave_phase() {
  const double now = now_seconds();
  charge_phase(now);
  const auto depth = static_cast<std::size_t>(phase_depth_--);
  add_event(name_of(phases_[depth]), "compute", phase_entered_[depth], now);
}

void Recorder::enter(Component component) {
  const double now = now_seconds();
  charge_component(now);
  require(component_depth_ + 1 < kMaxDepth, "components are nested too deeply");
  const auto depth = static_cast<std::size_t>(++component_depth_);
  components_[depth] = component;
  component_entered_[depth] = now;
}

void Recorder::leave_component() {
  const double now = now_seconds();
  charge_component(now);
  const auto depth = static_cast<std::size_t>(component_depth_--);
  add_event(name_of(components_[depth]), "compute", component_entered_[depth], now);
}

void Recorder::add_reduction(double start_seconds, double end_seconds) {
  times_.reduce_seconds += end_seconds - start_seconds;
  add_event("reduce", "data", start_seconds, end_seconds);
}

void Recorder::add_event(std::string_view name, std::string_view stream, double start, double end) {
  if (!traced_ || events_.size() == events_.capacity()) return;
  events_.push_back({name, stream, microbatch_, start - step_start_, end - step_start_});
}

}  // namespace hyperslab
