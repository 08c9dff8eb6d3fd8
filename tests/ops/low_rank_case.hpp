// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/ops/low_rank.hpp"

namespace hyperslab::test {

/// Sizes of a call of low_rank_backward: columns of the parts, and those without one between them.
struct LowRankCase {
  Dim rows = 1;
  Dim rank = 8;
  std::vector<Dim> widths = {8};
  Dim gap = 0;  ///< columns before each part

  [[nodiscard]] Dim columns() const {
    Dim sum = 0;
    for (const Dim width : widths) sum += gap + width;
    return sum;
  }
  [[nodiscard]] Dim ranks() const { return static_cast<Dim>(widths.size()) * rank; }
};

}  // namespace hyperslab::test
