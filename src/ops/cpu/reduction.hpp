// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops::cpu {

struct SquareSum {
  double squares = 0;
  double non_finite = 0;  ///< elements that are infinite or not a number
};

/// Sum of squares of an f32 or f64 view in double, in a fixed order that does not depend on the
/// number of threads. Uses sum_of_squares_workspace.
[[nodiscard]] SquareSum sum_of_squares(Context& ctx, const char* op, CView x);

}  // namespace hyperslab::ops::cpu
