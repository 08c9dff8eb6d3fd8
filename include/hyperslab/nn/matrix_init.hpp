// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "hyperslab/core/view.hpp"

namespace hyperslab::nn {

/// Which standard deviation the normal initial values of a matrix have: one number for all, or
/// sqrt(2 / (inputs + outputs)) (Glorot & Bengio 2010, equation 12, as PyTorch's xavier_normal_).
enum class InitRule : std::uint8_t { normal, xavier };

/// Initial values of matrices. Those that are multiplied at once, as queries, keys and values,
/// count as one matrix.
struct MatrixInit {
  InitRule rule = InitRule::normal;
  float std = 0.02F;  ///< standard deviation with `normal`
  [[nodiscard]] float std_of(Dim inputs, Dim outputs) const {
    return rule == InitRule::normal ? std : std::sqrt(2.0F / static_cast<float>(inputs + outputs));
  }
};

}  // namespace hyperslab::nn
