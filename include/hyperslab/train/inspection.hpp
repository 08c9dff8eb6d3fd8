// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "hyperslab/io/timing.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "hyperslab/train/memory_meter.hpp"
#include "hyperslab/train/memory_timeline.hpp"

namespace hyperslab::train {

class GroupMeter;
class StepRecords;

/// The measurements of a trainer's steps, and the memory and movements of a step. The trainer says
/// when a step begins and ends.
class Inspection {
 public:
  /// They outlive the inspection.
  struct Parts {
    const mesh::Mesh& mesh;
    const model::Arenas& arenas;
    const model::Stage& stage;
    const sharding::Presence& presence;
    const optim::Optimizer* optimizer;  ///< null if forward only
    Context& ctx;
    StepRecords& records;
    int microbatches;               ///< a step has so many
    std::size_t planned_workspace;  ///< bytes; 0 if the trainer measures
  };
  explicit Inspection(const Parts& parts);
  ~Inspection();
  Inspection(const Inspection&) = delete;
  Inspection& operator=(const Inspection&) = delete;
  Inspection(Inspection&&) = delete;
  Inspection& operator=(Inspection&&) = delete;

  void begin_step(bool traced, bool waits_at_marks);
  void end_step();
  /// Call after work that belongs to no step (evaluation, checkpoints), so that the next step is
  /// not charged with it.
  void restart_clock();
  [[nodiscard]] MemoryMeter& memory() { return memory_; }
  [[nodiscard]] MemoryTimeline& memory_timeline() { return timeline_; }

  /// The times of a step that is at most two older than the newest; waits for the device.
  [[nodiscard]] StepTimes times(std::int64_t step) const;
  /// The traffic of this rank's groups in such a step, in the order of groups(). On a GPU calls
  /// within graphs count only if they are captured: Plan::traffic has all of a step's traffic.
  [[nodiscard]] const io::GroupTraffics& traffic(std::int64_t step) const;
  [[nodiscard]] std::vector<io::GroupInfo> groups() const;
  [[nodiscard]] const MemoryMeter& memory() const { return memory_; }
  [[nodiscard]] const MemoryTimeline& memory_timeline() const { return timeline_; }
  /// Lives of the allocations of all arenas in the newest traced step, while it is the newest step.
  [[nodiscard]] std::vector<io::AllocationLife> allocation_lives() const;
  /// The memory in use: arenas, and the most of workspace that was asked for.
  [[nodiscard]] model::MemoryPlan memory_plan() const;
  /// The movements of a step: values, gradients, then state that rests on the host.
  [[nodiscard]] std::vector<sharding::NamedMovement> movements() const;

 private:
  Parts parts_;
  MemoryMeter memory_;
  MemoryTimeline timeline_;
  std::unique_ptr<GroupMeter> meter_;
  std::array<StepTimes, ops::kResultRing> host_times_{};
};

}  // namespace hyperslab::train
