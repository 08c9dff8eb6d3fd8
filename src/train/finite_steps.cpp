// SPDX-License-Identifier: Apache-2.0
#include "finite_steps.hpp"

#include <cmath>

namespace hyperslab::train {

void FiniteSteps::add(const ops::StepResult& result) {
  loss_is_finite_ = std::isfinite(result.loss_sum);
  if (result.skipped != 0) {
    ++in_a_row_;
  } else {
    in_a_row_ = 0;
    last_finite_ = result.step;
  }
}

}  // namespace hyperslab::train
