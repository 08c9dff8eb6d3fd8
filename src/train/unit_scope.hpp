// SPDX-License-Identifier: Apache-2.0
// A unit's pass for one microbatch, as profilers, traces and the timeline of memory see it.
#pragma once

#include <string_view>

#include "hyperslab/core/context.hpp"
#include "hyperslab/core/nvtx.hpp"
#include "hyperslab/train/memory_timeline.hpp"

namespace hyperslab::train {

/// For the life of the object.
class UnitScope {
 public:
  struct Unit {
    model::SlotId slot;
    int unit = 0;
    UnitPass pass = UnitPass::forward;
    std::string_view name;  ///< ends with a zero and outlives the step
  };
  UnitScope(Context& ctx, MemoryTimeline& timeline, const Unit& unit)
      : ctx_(ctx),
        timeline_(timeline),
        unit_(unit),
        range_(ctx.recorder().has_ranges(), unit.name),
        began_(ctx.recorder().traced() ? now_seconds() : 0) {
    timeline_.begin_unit(ctx_, unit_.slot, unit_.unit, unit_.pass);
  }
  ~UnitScope() {
    timeline_.end_unit(ctx_, unit_.slot, unit_.unit, unit_.pass);
    if (!ctx_.recorder().traced()) return;
    ctx_.recorder().add_event(unit_.name, "compute", began_, now_seconds());
  }
  UnitScope(const UnitScope&) = delete;
  UnitScope& operator=(const UnitScope&) = delete;
  UnitScope(UnitScope&&) = delete;
  UnitScope& operator=(UnitScope&&) = delete;

 private:
  Context& ctx_;
  MemoryTimeline& timeline_;
  Unit unit_;
  nvtx::Range range_;
  double began_;
};

}  // namespace hyperslab::train
