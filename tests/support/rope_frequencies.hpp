// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab::test {

/// theta^(-i / half), of plain rotary positions.
inline std::vector<double> rope_frequencies(double theta, Dim half) {
  std::vector<double> out;
  for (Dim i = 0; i < half; ++i) {
    out.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return out;
}

}  // namespace hyperslab::test
