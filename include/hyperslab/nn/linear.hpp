// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/nn/tensor_group.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::nn {

using ops::Accumulate;

/// How a tensor group shards a weight (Shoeybi et al. 2019): column parallel by its outputs (every
/// rank computes other columns of y from all of x), row parallel by its inputs (every rank computes
/// a term of y from its columns of x; the caller sums).
enum class Parallel : std::uint8_t { column, row };

/// y = x W^T + b, whose W may be several named tensors that lie one after the other.
class Linear {
 public:
  struct Output {
    std::string name;     ///< "blocks.0.attention.query"
    Dim width = 0;        ///< of the global tensor
    Hyperslab part = {};  ///< of (width): outputs that this rank computes; of rank 0: all
    int replicas = 1;     ///< ranks that compute the same ones
    int replica = 0;
  };
  struct Options {
    Dim input_width = 0;  ///< of the global tensor
    bool bias = true;
    float init_std = 0;
    Parallel parallel = Parallel::column;
  };
  Linear() = default;
  Linear(param::ParamStore& params, const TensorGroup& group, const std::vector<Output>& outputs,
         const Options& options);

  /// x: (..., C_in) -> y: (..., C_out), of this rank. Enqueues on ctx.
  void forward(Context& ctx, CView x, View y) const;
  /// The same with Parallel::row, summed over the group into y; `term` is what group.term() gives.
  void forward_summed(Context& ctx, const TensorGroup& group, CView x, View term, View y) const;
  /// pre = x W^T + b, y = act(pre).
  void forward_activated(Context& ctx, CView x, ops::Activation activation, View pre, View y) const;
  /// dy: (..., C_out) -> dx: (..., C_in), overwritten. It goes before the weight gradient, so that
  /// its collective can start early.
  void backward_input(Context& ctx, CView dy, View dx) const;
  /// Of a layer whose input was act(pre): dpre = (dy W) * act'(pre); dpre may alias pre.
  void backward_input_activated(Context& ctx, CView dy, CView pre, ops::Activation activation,
                                View dpre) const;
  /// Adds to (or, on the first microbatch, overwrites) the gradients of W and b.
  void backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate) const;

 private:
  [[nodiscard]] CView bias_value() const { return bias_ && adds_bias_ ? bias_.value() : CView(); }
  param::FusedParam weight_;
  param::FusedParam bias_;
  bool adds_bias_ = true;  ///< with Parallel::row only the first rank's term holds the bias
};

}  // namespace hyperslab::nn
