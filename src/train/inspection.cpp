// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/inspection.hpp"

#include <algorithm>

#include "group_meter.hpp"
#include "hyperslab/core/error.hpp"
#include "step_records.hpp"

namespace hyperslab::train {

Inspection::Inspection(const Parts& parts)
    : parts_(parts), meter_(std::make_unique<GroupMeter>(parts.mesh)) {
  if (parts_.ctx.device() == Device::cuda) meter_->record_operations(parts_.ctx.recorder());
  const model::MemoryPlan used = parts_.arenas.used();
  const auto held =
      static_cast<std::int64_t>(used.parameters + used.gradients + used.optimizer + used.scratch);
  memory_.change(held + parts_.stage.cache_bytes(), "parameters, state and scratch");
}

Inspection::~Inspection() = default;

void Inspection::begin_step(bool traced, bool waits_at_marks) {
  memory_.begin_step();
  timeline_.begin_step(traced, waits_at_marks);
  meter_->begin_step();
}

void Inspection::end_step() {
  timeline_.end_step(parts_.ctx);
  const StepTimes& times = parts_.ctx.recorder().end_step();
  meter_->end_step(times.step);
  host_times_[static_cast<std::size_t>(times.step % ops::kResultRing)] = times;
}

void Inspection::restart_clock() {
  parts_.records.restart_clock();
  meter_->collect();
}

StepTimes Inspection::times(std::int64_t step) const {
  const StepTimes& host = host_times_[static_cast<std::size_t>(step % ops::kResultRing)];
  require(host.step == step, "the times of that step are gone or not there yet");
  return parts_.records.times(step, host);
}

const io::GroupTraffics& Inspection::traffic(std::int64_t step) const { return meter_->of(step); }
std::vector<io::GroupInfo> Inspection::groups() const { return meter_->groups(); }

model::MemoryPlan Inspection::memory_plan() const {
  model::MemoryPlan plan = parts_.arenas.used();
  plan.workspace = std::max(parts_.planned_workspace, parts_.ctx.workspace_high_water());
  return plan;
}

std::vector<io::AllocationLife> Inspection::allocation_lives() const {
  return timeline_.lives(parts_.stage, parts_.arenas, memory_plan().workspace,
                         parts_.ctx.recorder().step_start());
}

std::vector<sharding::NamedMovement> Inspection::movements() const {
  std::vector<sharding::NamedMovement> all = parts_.presence.movements(parts_.microbatches);
  if (parts_.optimizer == nullptr) return all;
  const std::vector<std::size_t> bytes = parts_.optimizer->moved_bytes();
  const std::vector<param::Bucket>& buckets = parts_.stage.params().trained().buckets();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    const bool by_bucket = bytes.size() == buckets.size();  // else one range is all of them
    all.push_back({"state",
                   by_bucket ? buckets[i].first_unit : 0,
                   by_bucket ? buckets[i].last_unit : parts_.stage.units() - 1,
                   {{layout::Step::Kind::to_device, {}, bytes[i]},
                    {layout::Step::Kind::to_host, {}, bytes[i]}},
                   1,
                   "around its update",
                   parts_.presence.overlaps_updates() ? "forward of the units before it" : ""});
  }
  return all;
}

}  // namespace hyperslab::train
