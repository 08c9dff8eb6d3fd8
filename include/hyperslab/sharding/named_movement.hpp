// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/layout/movement.hpp"

namespace hyperslab::sharding {

/// A movement of a step, for people: what moves, when, and beside which computation.
struct NamedMovement {
  std::string_view what;  ///< "values", "dequantized matrices", "FP8 matrices", "gradients", ...
  int first_unit = 0;     ///< first unit of the bucket
  int last_unit = 0;
  std::vector<layout::Step> steps;
  int times = 1;  ///< in a step
  std::string_view starts;
  std::string_view behind;  ///< the computation that hides it; empty: none
  bool of_experts = false;  ///< tensors that other ranks along mesh::Axis::expert do not hold
};

}  // namespace hyperslab::sharding
