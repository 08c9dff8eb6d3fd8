// SPDX-License-Identifier: Apache-2.0
// Records of steps with finite numbers, which decide about checkpoints.
#pragma once

#include <cstdint>

#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::run {

/// Fed with the result of every step in order. The loss and the gradients of step s come from the
/// weights after step s - 1: a step that is finite proves the weights it started from, never those
/// that its own update leaves. A step that is not finite updates nothing.
class FiniteSteps {
 public:
  /// The decision about a checkpoint after the newest step: a step that is not finite saves
  /// nothing, and the checkpoint waits for one that is, or at the end of a run is not written.
  enum class Save : std::uint8_t { now, later, never };
  static constexpr int kMostInARow = 10;      ///< more steps in a row that are not finite end a run
  static constexpr int kMostFailedSaves = 3;  ///< so many in a row end a run

  explicit FiniteSteps(std::int64_t first_step) : last_finite_(first_step - 1) {}

  void add(const ops::StepResult& result);
  /// True if the newest step was finite; true before the first.
  [[nodiscard]] bool newest_is_finite() const { return in_a_row_ == 0; }
  /// True if the newest step's gradients alone were not finite. Under a loss scale that is nothing
  /// unusual: the scale was too large, and is halved.
  [[nodiscard]] bool only_gradients_overflowed() const { return in_a_row_ > 0 && loss_is_finite_; }
  [[nodiscard]] int in_a_row() const { return in_a_row_; }  ///< newest steps that were not finite
  /// `scales_loss`: of fp16; at the end of a run an overflow of gradients alone saves all the same,
  /// for the weights are those after the step before.
  Save decide(bool at_end, bool scales_loss);
  /// True if a checkpoint waits for a finite step.
  [[nodiscard]] bool save_is_due() const { return save_is_due_; }
  /// After a save: whether all values were finite, without which nothing was written.
  void note_save(bool finite) { failed_saves_ = finite ? 0 : failed_saves_ + 1; }
  /// So many of the newest saves wrote nothing, for values after a finite step were not finite.
  [[nodiscard]] int failed_saves() const { return failed_saves_; }

  /// The newest step whose weights gave a finite loss and finite gradients. Before the first finite
  /// step of a start it is a step before the one that was resumed, which proved nothing yet.
  [[nodiscard]] std::int64_t proven() const { return last_finite_ - 1; }

 private:
  std::int64_t last_finite_;
  int in_a_row_ = 0;
  int failed_saves_ = 0;
  bool loss_is_finite_ = true;
  bool save_is_due_ = false;
};

}  // namespace hyperslab::run
