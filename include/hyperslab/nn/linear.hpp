// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "hyperslab/nn/adapter.hpp"
#include "hyperslab/nn/fp8_product.hpp"
#include "hyperslab/nn/linear_parts.hpp"
#include "hyperslab/ops/decode_block.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::nn {

using ops::Accumulate;

/// The input as forward multiplied by it: rounded, in the context's workspace, if the product took
/// int8 activations. `most_rows`: that x may have, if that is not known when memory is planned.
[[nodiscard]] CView rounded_input(Context& ctx, const param::FusedParam& weight, CView x,
                                  Dim most_rows = 0);

/// y = x W^T + b, whose W may be several named tensors that lie one after the other, and to which
/// adapters may be added.
class Linear {
 public:
  using Output = LinearOutput;
  using Options = LinearOptions;
  Linear() = default;
  Linear(param::ParamStore& params, const TensorGroup& group, const std::vector<Output>& outputs,
         const Options& options);

  /// x: (..., C_in) -> y: (..., C_out), of this rank. Enqueues on ctx.
  void forward(Context& ctx, CView x, View y, const LinearPass& pass = {}) const;
  /// forward with Parallel::row, summed over the group into y; `term` is the view of group.term().
  void forward_summed(Context& ctx, const TensorGroup& group, CView x, View term, View y,
                      const LinearPass& pass = {}) const;
  /// forward() of all rows of x, which group.gather() leaves in `full` if rows are cut.
  void forward_gathered(Context& ctx, const TensorGroup& group, CView x, View full, View y,
                        const LinearPass& pass = {}) const;
  /// pre = x W^T + b, y = act(pre).
  void forward_activated(Context& ctx, CView x, ops::Activation activation, View pre, View y,
                         const LinearPass& pass = {}) const;
  /// y = act(gate) * up of x through the layer, for generation: pre's values are not defined
  /// afterwards. pre: (B, T, 2F); y: (B, T, F).
  void forward_gated(Context& ctx, CView x, ops::Activation activation, View pre, View y,
                     const LinearPass& pass) const;
  /// backward_input() with Parallel::column, summed over the group into dx, and the ticket to wait
  /// for before dx is read; `term` comes from group.term().
  struct SummedPass {
    LinearPass pass;
    TensorGroup::Sums sums;
  };
  [[nodiscard]] SummedPass backward_input_summed(Context& ctx, const TensorGroup& group, CView dy,
                                                 View term, View dx, LinearPass pass = {}) const;
  /// dy: (..., C_out) -> dx: (..., C_in), overwritten. It goes before the weight gradient, so that
  /// its collective can start early; returns the pass that backward_weight of this dy takes.
  LinearPass backward_input(Context& ctx, CView dy, View dx, LinearPass pass = {}) const;
  /// backward_input of all rows of dy, which group.gather() leaves in `full` if rows are cut.
  LinearPass backward_input_gathered(Context& ctx, const TensorGroup& group, CView dy, View full,
                                     View dx, LinearPass pass = {}) const;
  /// For a layer without adapters whose input was act(pre): dpre = (dy W) * act'(pre), which may
  /// alias pre, and its column sums.
  void backward_input_activated(Context& ctx, CView dy, CView pre, ops::Activation activation,
                                const ops::ActivationGradients& gradients) const;
  /// Adds to (or, on the first microbatch, overwrites) the gradients of W and b, or the
  /// adapters'.
  void backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate,
                       const LinearPass& pass = {}) const;
  /// Absent if there is no bias, or if it is frozen.
  [[nodiscard]] View bias_gradient() const { return bias_ ? bias_.gradient() : View(); }
  /// The operands of forward(), if it is one product of x by these weights or their codes.
  [[nodiscard]] std::optional<ops::BlockWeights> product() const;
  /// Columns of LinearPass::reduced; 0: no adapters.
  [[nodiscard]] Dim adapter_ranks() const { return adapter_.ranks(); }
  /// True if LinearPass::amax is of use.
  [[nodiscard]] bool keeps_amax() const { return fp8_.keeps_amax(); }

 private:
  /// y = x W^T + b without adapters.
  void multiply(Context& ctx, CView x, const LinearPass& pass, View y) const;
  /// True if the layer is x W^T + b with W as it lies in memory.
  [[nodiscard]] bool is_plain(Dim rows) const;
  [[nodiscard]] CView bias_value() const { return bias_ && adds_bias_ ? bias_.value() : CView(); }
  param::FusedParam weight_;
  param::FusedParam bias_;
  Adapter adapter_;
  Fp8Product fp8_;
  bool adds_bias_ = true;  ///< with Parallel::row only the first rank's term holds the bias
};

}  // namespace hyperslab::nn
