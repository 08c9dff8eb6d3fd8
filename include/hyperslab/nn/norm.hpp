// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hyperslab/nn/for_tokens.hpp"
#include "hyperslab/nn/linear.hpp"
#include "hyperslab/ops/norm.hpp"

namespace hyperslab::nn {

/// Gradients of two biases, of terms that enter the residual stream before a norm and after it.
/// They are the column sums of the stream's gradient, which the norm's backward pass reads and
/// writes anyway (ops::NormGradients), so that linear layers need not read it once more.
struct StreamBiases {
  View before{};
  View after{};
};

/// Residual addition and normalization: sum = residual + delta, y = norm(sum). With NormKind::none
/// there are no parameters and y is the sum.
class Norm {
 public:
  struct Slot {
    View sum;   ///< stream; absent if nothing is ever added here
    View out;   ///< stream; absent for NormKind::none
    View mean;  ///< rows of the stream, layernorm only
    View rstd;  ///< rows of the stream
    CView x;    ///< input that was normalized: the sum, or the residual without a delta
    [[nodiscard]] CView y() const { return out ? CView(out) : x; }
    /// The memory of a slot for count.B samples of count.T tokens, in all at most as many tokens as
    /// it was planned for.
    [[nodiscard]] Slot for_tokens(const TokenCount& count) const;
  };

  Norm() = default;
  struct Options {
    ops::NormKind kind = ops::NormKind::none;
    Dim width = 0;
    float eps = 0;
    bool bias = true;
  };
  Norm(param::ParamStore& params, const TensorGroup& group, const std::string& name,
       const Options& options);
  /// The number of its parameters.
  [[nodiscard]] static Dim parameters(const Options& options);

  /// `adds`: forward will be given a delta. `out`: memory for results that live only until
  /// their use; absent: they are kept.
  struct Plan {
    Shape shape;
    DType compute = DType::f32;
    DType statistics = DType::f32;
    bool adds = false;
    View out = {};
  };
  Slot plan(Arena& activations, const Plan& plan, const std::string& label) const;
  /// delta may be absent.
  void forward(Context& ctx, CView residual, CView delta, Slot& slot) const;
  /// The norm as ops have it that do more besides; absent for NormKind::none.
  [[nodiscard]] std::optional<ops::BlockNorm> operands() const;
  /// Computes slot.out again from slot.x, to the same bits.
  void recompute(Context& ctx, const Slot& slot) const;
  /// True if it has weights, and they are trained.
  [[nodiscard]] bool trains() const { return weight_ && weight_.gradient(); }
  /// dsum = gradient through the norm, or added to dsum if `through` says that it already holds
  /// the gradient of the residual path. dy may alias dsum with Accumulate::no. `biases`: both
  /// or neither, of a norm that trains and with `through` Accumulate::yes.
  void backward(Context& ctx, const Slot& slot, CView dy, Accumulate through, View dsum,
                Accumulate accumulate, const StreamBiases& biases = {}) const;

 private:
  void normalize(Context& ctx, CView residual, CView delta, View sum, const Slot& slot) const;
  ops::NormKind kind_ = ops::NormKind::none;
  float eps_ = 0;
  param::FusedParam weight_;
  param::FusedParam bias_;
};

}  // namespace hyperslab::nn
