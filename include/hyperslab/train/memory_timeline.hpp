// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/io/timing.hpp"
#include "hyperslab/model/stage.hpp"

namespace hyperslab::train {

/// The pass of a unit for a microbatch. A backward pass in two parts ends with its weights.
enum class UnitPass : std::uint8_t { forward, evaluate, backward, backward_input, backward_weight };

/// Reports when each allocation of a trainer's arenas is in use in a step. Arenas keep their
/// memory all the time; in use is
///   - memory that a layer keeps of a microbatch, from its forward to the end of its backward
///     (without a backward, to the end of the chunk's forward);
///   - memory of a slot that belongs to no layer, from the slot's first pass to its last;
///   - gradients, from the first pass that writes them to the end of the update;
///   - parameters, optimizer state and scratch memory, which all microbatches share, always.
/// Recording allocates nothing.
class MemoryTimeline {
 public:
  explicit MemoryTimeline(std::size_t capacity = 1 << 16) { marks_.reserve(capacity); }

  /// `waits`: on a GPU the host waits for the device at every mark, so that times are the device's
  /// and not the host's, which is ahead of it.
  void begin_step(bool records, bool waits);
  /// A unit of a slot's chunk begins or ends a pass; nothing if the step is not recorded.
  void begin_unit(Context& ctx, model::SlotId slot, int unit, UnitPass pass);
  void end_unit(Context& ctx, model::SlotId slot, int unit, UnitPass pass);
  void begin_update(Context& ctx);
  /// The update, or the step without one, is over.
  void end_step(Context& ctx);
  [[nodiscard]] bool records() const { return records_; }
  /// Marks of the newest recorded step that found no room.
  [[nodiscard]] std::int64_t lost() const { return lost_; }

  /// Lives of allocations in the newest recorded step, which began at `step_start` on the monotonic
  /// clock.
  [[nodiscard]] std::vector<io::AllocationLife> lives(const model::Stage& stage,
                                                      const model::Arenas& arenas,
                                                      std::size_t workspace_bytes,
                                                      double step_start) const;
  /// A time in which passes of one kind ran without a pause, for plots: "forward", "backward",
  /// "optimizer". Since `step_start`.
  struct Span {
    std::string name;
    double start_seconds = 0;
    double end_seconds = 0;
  };
  [[nodiscard]] std::vector<Span> spans(double step_start) const;

 private:
  enum class Kind : std::uint8_t { begin_unit, end_unit, begin_update, end_step };
  struct Mark {
    Kind kind = Kind::begin_unit;
    UnitPass pass = UnitPass::forward;
    model::SlotId slot;
    int unit = 0;
    double seconds = 0;
  };
  void mark(Context& ctx, Mark mark);
  [[nodiscard]] double first_gradient(const model::Stage& stage) const;
  void add_activations(const model::Stage& stage, const Arena& arena,
                       std::vector<io::AllocationLife>& lives) const;

  std::vector<Mark> marks_;
  bool records_ = false;
  bool waits_ = false;
  std::int64_t lost_ = 0;
};

}  // namespace hyperslab::train
