// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hyperslab/nn/adapter.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::nn {

/// The rows of one product of a rank's experts, in the order of the experts, and its memory.
struct ExpertRows {
  CView first_rows;       ///< (E + 1) i32: expert e has rows
                          ///< [first_rows[e], first_rows[e + 1])
  Dim most = 0;           ///< rows that may come
  View reduced;           ///< (rows, adapter_ranks()): as forward leaves it for backward_weight
  View reduced_gradient;  ///< likewise, without a meaning after a call; absent without training
};

/// y_r = x_r W_e^T for the rows of expert e, whose matrices lie one after the other. Each expert
/// may have adapters of its own: see Adapter.
class ExpertLinear {
 public:
  /// `experts`: the outputs of each expert of this rank, all with the same options.
  ExpertLinear(param::ParamStore& params, const TensorGroup& group,
               const std::vector<std::vector<LinearOutput>>& experts, const LinearOptions& options);

  /// x: (rows, C_in) -> y: (rows, C_out), of this rank.
  void forward(Context& ctx, const ops::GatheredRows& x, const ExpertRows& rows, View y) const;
  /// dy: (rows, C_out) -> dx: (rows, C_in), overwritten.
  void backward_input(Context& ctx, const ops::GatheredRows& dy, const ExpertRows& rows,
                      View dx) const;
  /// Adds to, or overwrites, the gradients of what is trained; those of an expert without rows are
  /// zero.
  void backward_weight(Context& ctx, const ops::GatheredRows& dy, const ops::GatheredRows& x,
                       const ExpertRows& rows, ops::Accumulate accumulate) const;
  /// Columns of ExpertRows::reduced; 0: no adapters.
  [[nodiscard]] Dim adapter_ranks() const {
    return adapters_.empty() ? 0 : adapters_.front().ranks();
  }

 private:
  [[nodiscard]] ops::GatheredRows readable(Context& ctx, const ops::GatheredRows& rows) const;
  template <class Work>
  void for_adapters(const Context& ctx, const ExpertRows& rows, Dim count, Work&& work) const;

  param::FusedParam weight_;
  std::vector<Adapter> adapters_;  ///< one for each expert, or none
};

}  // namespace hyperslab::nn
