// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace hyperslab::pipeline {

/// Cuts units (layers, with embedding and head) into `parts` contiguous parts of at least one unit
/// each, such that the most costly part costs the least; exact, by dynamic programming. Among such
/// cuts it takes the most even one (least sum of squares), and then the one with the lighter first
/// parts, since early stages keep the most activations. Costs are 0 or more, in any unit.
/// Returns the number of units of each part. Throws Error(usage) if there are fewer units than
/// parts.
[[nodiscard]] std::vector<int> balance(std::span<const double> unit_costs, int parts);

}  // namespace hyperslab::pipeline
