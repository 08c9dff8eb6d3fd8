// SPDX-License-Identifier: Apache-2.0
// Operands of the ops of vision transformers, for their tests on every device.
#pragma once

#include <vector>

#include "hyperslab/ops/classes.hpp"
#include "support/tensors.hpp"

namespace hyperslab::ops::test {

/// Labels of B rows: pairs of classes, of which every fourth row does not count.
inline Tensor class_labels(Dim B, Dim classes) {
  std::vector<std::int32_t> ids;
  for (Dim b = 0; b < B; ++b) {
    const bool counts = b % 4 != 2;
    ids.push_back(counts ? static_cast<std::int32_t>((b * 7) % classes) : kIgnoredTarget);
    ids.push_back(counts ? static_cast<std::int32_t>((b * 5 + 1) % classes) : kIgnoredTarget);
  }
  return hyperslab::test::int_tensor({B, 2}, ids);
}

inline Tensor class_weights(Dim B) {
  std::vector<double> weights;
  for (Dim b = 0; b < B; ++b)
    weights.push_back(b % 3 == 0 ? 1.0 : 0.125 * static_cast<double>(b % 8));
  return hyperslab::test::tensor_of(DType::f32, {B}, weights);
}

}  // namespace hyperslab::ops::test
