// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "hyperslab/nn/adapter_config.hpp"
#include "hyperslab/nn/fp8_config.hpp"
#include "hyperslab/nn/linear_parts.hpp"
#include "hyperslab/ops/dropout.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::nn {

/// Arguments of a pass through a linear layer besides its operands, for its adapters and its
/// products of FP8 values.
struct LinearPass {
  ops::Dropout dropout = {};  ///< mask of the adapters' input
  View reduced = {};          ///< (..., ranks): s x A^T, that backward_weight finds as forward left
                              ///< it; absent: computed each time
  View reduced_gradient = {};  ///< (..., ranks): s dy B, likewise of backward_input; or absent
  View rounded_gradient = {};  ///< Fp8Product::kept_bytes: dy^T as backward_input rounded it for
                               ///< backward_weight; absent: rounded again
  View amax = {};              ///< Fp8Product::Kept::amax of the layer, or absent
  /// `given` if the amax of x and of dy lie in `amax` before forward and backward_input.
  ops::Fp8Amax input_amax = ops::Fp8Amax::found;
  ops::Fp8Amax gradient_amax = ops::Fp8Amax::found;
  Fp8Weights fp8_weights = Fp8Weights::rounded;
  /// The accumulation of backward_weight if it follows backward_input, which then also computes the
  /// results that one reading of dy gives both. Absent: it does not follow.
  std::optional<ops::Accumulate> weights_follow = {};
  /// True if backward_weight computes no gradient of the bias, as a norm does (StreamBiases),
  /// attention (ops::AttentionGradients) or a product (ops::ActivationGradients).
  bool skips_bias = false;
  /// True if backward_input left the gradients there for this dy.
  bool has_gradient = false;
  /// True if the values between A and B have memory of their own for both directions.
  [[nodiscard]] bool keeps() const { return reduced && reduced_gradient; }
  /// True if backward_input computes the gradients of B too.
  [[nodiscard]] bool reads_once() const { return weights_follow && keeps(); }
  /// The part of rows [begin, begin + count) of the input x, for forward.
  [[nodiscard]] LinearPass rows(CView x, Dim begin, Dim count) const;
};

/// The adapters of a linear layer: of its output i, s (x A_i^T) B_i^T is added to the columns of y
/// that output i has. The A lie one after the other and are one operand.
///
/// A is cut like the layer's inputs, B like its outputs. With Parallel::column every rank's dy B is
/// a term of a sum, and so is its gradient of A; with Parallel::row its x A^T is one, and so are
/// its part of y, which the layer sums anyway, and its gradient of B.
class Adapter {
 public:
  Adapter() = default;
  /// For the members of `outputs` that the options' adapter names.
  Adapter(param::ParamStore& params, const TensorGroup& group,
          const std::vector<LinearOutput>& outputs, const LinearOptions& options);

  [[nodiscard]] explicit operator bool() const { return !parts_.empty(); }
  /// Rows of all A: columns of the values between A and B.
  [[nodiscard]] Dim ranks() const { return static_cast<Dim>(parts_.size()) * rank_; }
  /// True if every column of y, C_out in all, gets a term.
  [[nodiscard]] bool covers(Dim outputs) const;
  /// y: (..., C_out) (+)= s (x A^T) B^T with x: (..., C_in) after dropout. Columns without an
  /// adapter stay as they are.
  void forward(Context& ctx, const LinearPass& pass, CView x, ops::Accumulate accumulate,
               View y) const;
  /// dx (+)= s (dy B) A, through the dropout; and the gradients of B if the pass says that
  /// backward_weight follows, which then leaves them out.
  void backward_input(Context& ctx, const LinearPass& pass, CView dy, ops::Accumulate accumulate,
                      View dx) const;
  /// dA (+)= s (dy B)^T x and dB_i (+)= s dy_i^T (x A_i^T).
  void backward_weight(Context& ctx, const LinearPass& pass, CView dy, CView x,
                       ops::Accumulate accumulate) const;
  /// All gradients become zero.
  void clear_gradients(Context& ctx) const;

 private:
  /// One adapted output.
  struct Part {
    Dim first_column = 0;  ///< column of y, on this rank
    Dim columns = 0;
  };
  struct Scratch;
  [[nodiscard]] Scratch take_scratch(Context& ctx, const LinearPass& pass, CView x) const;
  [[nodiscard]] static CView dropped(Context& ctx, const LinearPass& pass, CView x,
                                     const Scratch& scratch);
  void reduce(Context& ctx, CView x, const Scratch& scratch) const;
  void reduce_gradient(Context& ctx, CView dy, const Scratch& scratch) const;
  void gradients_of(Context& ctx, CView dy, const Scratch& scratch,
                    ops::Accumulate accumulate) const;
  [[nodiscard]] ops::CColumns of_part(CView reduced, std::size_t part,
                                      ops::Trans trans = ops::Trans::no) const;

  Dim rank_ = 0;
  float scale_ = 1;
  std::vector<Part> parts_;
  param::FusedParam a_;
  param::FusedParam b_;
};

}  // namespace hyperslab::nn
