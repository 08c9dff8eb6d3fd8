// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/param/spec.hpp"

namespace hyperslab::quantize {

/// The weight of errors of a layer's weights, from the inputs of the layer.
class ErrorModel {
 public:
  /// `products`: X^T X over all calibration inputs X (N, K), row-major (K, K). Factors the inverse
  /// of X^T X + damping * its mean diagonal (Frantar et al. 2023, GPTQ, section 3.3); inputs that
  /// are always zero count as independent of all others. Throws Error(numerics) if the matrix is
  /// not finite.
  ErrorModel(std::vector<double> products, Dim columns, double damping = 0.01);
  [[nodiscard]] Dim columns() const { return columns_; }
  /// Row i of the upper Cholesky factor U of the inverse, U^T U, from column i on.
  [[nodiscard]] const float* row(Dim i) const { return factor_.data() + i * columns_ + i; }
  /// True if input i was zero in all samples.
  [[nodiscard]] bool is_dead(Dim i) const { return dead_[static_cast<std::size_t>(i)]; }

 private:
  Dim columns_;
  std::vector<float> factor_;
  std::vector<bool> dead_;
};

/// Rounds weight (M, K), f32 on the CPU, to `out`, column by column from the left: the error of a
/// column's rounding in the layer's outputs is made up for, as far as the inputs allow, by the
/// columns that are not rounded yet (GPTQ, algorithm 1). A group's scale is found when its first
/// column comes. `weight` is used up. int8 and int4.
void round_compensating(const ErrorModel& errors, View weight, const ops::QuantizedMatrix& out);

}  // namespace hyperslab::quantize
