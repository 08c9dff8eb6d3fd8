// SPDX-License-Identifier: Apache-2.0
#include "finite_steps.hpp"

#include <cmath>

namespace hyperslab::run {

void FiniteSteps::add(const ops::StepResult& result) {
  loss_is_finite_ = std::isfinite(result.loss_sum);
  if (result.skipped != 0) {
    ++in_a_row_;
  } else {
    in_a_row_ = 0;
    last_finite_ = result.step;
  }
}

FiniteSteps::Save FiniteSteps::decide(bool at_end, bool scales_loss) {
  const bool overflow = at_end && scales_loss && only_gradients_overflowed();
  save_is_due_ = !newest_is_finite() && !overflow;
  if (!save_is_due_) return Save::now;
  return at_end ? Save::never : Save::later;
}

}  // namespace hyperslab::run
