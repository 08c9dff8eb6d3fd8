// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab::run {

/// When steps ended, though the host may learn of their ends later, and of several at once: a step
/// begins once the host has called for it and the one before it has ended.
class StepClock {
 public:
  /// The host calls for the step at `now`, on the monotonic clock.
  void begin(std::int64_t step, double now) { called_[slot(step)] = now; }
  /// At `now` the host knows that the step, the one after the newest that ended, took `seconds`.
  /// Returns its end on the monotonic clock: never before the end of an earlier step.
  double end(std::int64_t step, double seconds, double now) {
    ended_ = std::min(now, std::max(ended_, called_[slot(step)]) + seconds);
    return ended_;
  }

 private:
  static std::size_t slot(std::int64_t step) {
    return static_cast<std::size_t>(step % ops::kResultRing);
  }
  std::array<double, ops::kResultRing> called_{};
  double ended_ = 0;
};

}  // namespace hyperslab::run
