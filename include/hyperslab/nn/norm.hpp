// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/linear.hpp"
#include "hyperslab/ops/norm.hpp"

namespace hyperslab::nn {

/// Residual addition and normalization: sum = residual + delta, y = norm(sum). With NormKind::none
/// there are no parameters and y is the sum.
class Norm {
 public:
  struct Slot {
    View sum;   ///< (B, T, C); absent where nothing is ever added here
    View out;   ///< (B, T, C); absent for NormKind::none
    View mean;  ///< (B, T), layernorm only
    View rstd;  ///< (B, T)
    CView x;    ///< what was normalized: the sum, or the residual where there was no delta
    [[nodiscard]] CView y() const { return out ? CView(out) : x; }
  };
  Norm() = default;
  Norm(ParamTable& params, const std::string& name, ops::NormKind kind, Dim width, float eps,
       bool bias);

  /// `adds`: forward will be given a delta.
  Slot plan(Arena& activations, const Shape& shape, DType compute, DType statistics, bool adds,
            const std::string& label) const;
  /// delta may be absent.
  void forward(Context& ctx, CView residual, CView delta, Slot& slot) const;
  /// dsum = gradient through the norm, or added to dsum where `through` says that it already holds
  /// the gradient of the residual path. dy may alias dsum with Accumulate::no.
  void backward(Context& ctx, const Slot& slot, CView dy, Accumulate through, View dsum,
                Accumulate accumulate) const;

 private:
  ops::NormKind kind_ = ops::NormKind::none;
  float eps_ = 0;
  Pack weight_;
  Pack bias_;
};

}  // namespace hyperslab::nn
