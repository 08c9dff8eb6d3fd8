// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "hyperslab/core/hyperslab.hpp"

namespace hyperslab::test {

/// The elements of a part of a tensor of this shape, in their order.
inline std::vector<double> part_of(const std::vector<double>& whole, const Shape& shape,
                                   const Hyperslab& part) {
  std::vector<double> out(static_cast<std::size_t>(part.count.numel()));
  const HyperslabRuns runs(part, Hyperslab::whole(shape), part);
  for (Dim run = 0; run < runs.size(); ++run) {
    for (Dim i = 0; i < runs.length(); ++i) {
      out[static_cast<std::size_t>(runs[run].source + i)] =
          whole[static_cast<std::size_t>(runs[run].target + i)];
    }
  }
  return out;
}

}  // namespace hyperslab::test
