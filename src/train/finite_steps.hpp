// SPDX-License-Identifier: Apache-2.0
// Which steps had finite numbers, and what follows from it for checkpoints.
#pragma once

#include <cstdint>

#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::train {

/// Fed with the result of every step in order. The loss and the gradients of step s come from the
/// weights behind step s - 1: a step that is finite proves the weights it started from, never those
/// that its own update leaves. A step that is not finite updates nothing.
class FiniteSteps {
 public:
  static constexpr int kMostInARow = 10;  ///< more steps in a row that are not finite end a run

  explicit FiniteSteps(std::int64_t first_step) : last_finite_(first_step - 1) {}

  void add(const ops::StepResult& result);
  /// Whether the newest step was finite; true before the first.
  [[nodiscard]] bool newest_is_finite() const { return in_a_row_ == 0; }
  /// Whether the newest step's gradients alone were not finite. Under a loss scale that is nothing
  /// unusual: the scale was too large, and is halved.
  [[nodiscard]] bool only_gradients_overflowed() const { return in_a_row_ > 0 && loss_is_finite_; }
  [[nodiscard]] int in_a_row() const { return in_a_row_; }  ///< newest steps that were not finite
  /// The newest step whose weights gave a finite loss and finite gradients. Before the first finite
  /// step of a start it is a step before the one that was resumed, which proved nothing yet.
  [[nodiscard]] std::int64_t proven() const { return last_finite_ - 1; }

 private:
  std::int64_t last_finite_;
  int in_a_row_ = 0;
  bool loss_is_finite_ = true;
};

}  // namespace hyperslab::train
