// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// Difference of a tensor between two checkpoints.
struct TensorDifference {
  std::string tensor;
  /// "only in the first", "shape (2, 3) and (2, 4)", "dtype f32 and f16"; empty: the values differ.
  std::string problem;
  std::int64_t unequal = 0;  ///< elements with other values, NaN beside NaN counted as equal
  std::int64_t elements = 0;
  double largest = 0;           ///< |a - b|; infinite if one of them is not finite
  Shape where;                  ///< an element with the largest difference
  double relative_norm = 0;     ///< sqrt(sum (a - b)^2 / sum a^2) over finite values
  std::int64_t not_finite = 0;  ///< values of either that are not finite
};

/// The tensors that differ, by name; none: all are equal. Layouts may differ. Reads both
/// checkpoints in parts of at most 64 MiB. Throws as CheckpointReader::read().
[[nodiscard]] std::vector<TensorDifference> compare(const CheckpointReader& first,
                                                    const CheckpointReader& second);

}  // namespace hyperslab::io
