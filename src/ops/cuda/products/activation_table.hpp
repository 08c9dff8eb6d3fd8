// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "activation_product.hpp"
#include "cuda/tools/kernel_table.hpp"
#include "cuda/tools/library_workspace.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "quantized_workspace.hpp"

// The kernels of a product with an activation. The same rows decide when an op runs and its path in
// the ledger on `meta`; they need no CUDA. Should cuBLASLt have no algorithm for an epilogue, the
// op computes the activation by itself all the same. A plan's path knows no warpgroups, which fuse
// more.

namespace hyperslab::ops::cuda {

inline constexpr const char* kFused = "fused";
inline constexpr const char* kSeparate = "separate";

/// The parts of a call of linear_activation_forward or linear_activation_backward_input that decide
/// who computes it: a product of (rows, depth) with so many columns, and the activation after it.
struct ActivationProblem {
  Dim rows;
  Dim depth;
  Dim columns;
  DType dtype;
  Activation activation;
  bool is_aligned;      ///< all operands begin at multiples of 16 bytes
  bool is_pre_aligned;  ///< the activation's input does
  bool deterministic;   ///< forward alone asks
  bool is_in_place;     ///< backward: the gradient has the memory of the activation's input
};

[[nodiscard]] inline ActivationProblem activation_forward_problem(const Context& ctx, CView x,
                                                                  CView weight, CView bias,
                                                                  Activation activation, CView pre,
                                                                  CView y) {
  return {.rows = pre.rows(),
          .depth = x.shape().back(),
          .columns = pre.shape().back(),
          .dtype = x.dtype(),
          .activation = activation,
          .is_aligned = begin_at_16_bytes(x, weight, bias, pre, y),
          .is_pre_aligned = begin_at_16_bytes(pre),
          .deterministic = ctx.deterministic(),
          .is_in_place = false};
}
[[nodiscard]] inline ActivationProblem activation_backward_problem(CView dy, CView weight,
                                                                   CView pre, Activation activation,
                                                                   CView dpre) {
  return {.rows = pre.rows(),
          .depth = dy.shape().back(),
          .columns = pre.shape().back(),
          .dtype = dy.dtype(),
          .activation = activation,
          .is_aligned = begin_at_16_bytes(dy, weight, pre, dpre),
          .is_pre_aligned = begin_at_16_bytes(pre),
          .deterministic = false,
          .is_in_place = pre.raw() == dpre.raw()};
}

[[nodiscard]] inline Reason suits_warpgroup_product(const ActivationProblem& problem) {
  constexpr Dim kFewestTiles = 64;
  const Dim tiles = (problem.rows + kActivationProductRows - 1) / kActivationProductRows *
                    ((problem.columns + kActivationProductColumns - 1) / kActivationProductColumns);
  if (size_of(problem.dtype) != 2) return "elements are not 16 bits wide";
  if (problem.depth % 8 != 0 || problem.columns % 8 != 0 || !problem.is_aligned) {
    return "rows are not a multiple of 16 bytes";
  }
  if (tiles < kFewestTiles) return "fewer than 64 tiles leave multiprocessors idle";
  return {};
}

/// Longer sums forward are cuBLASLt's, whose larger tiles then gain more than hiding the activation
/// (analysis/results/kernels-h200.txt). With run.deterministic a row has the same bits in products
/// of few rows, which are cuBLASLt's.
[[nodiscard]] inline Reason suits_warpgroups_forward(const ActivationProblem& problem) {
  if (problem.deterministic) return "run.deterministic: few rows are cuBLASLt's";
  if (problem.depth > 1024) return "cuBLASLt is faster with sums of more than 1024 terms";
  return suits_warpgroup_product(problem);
}

/// cuBLASLt has the tanh approximation of GELU, too coarse for f32.
[[nodiscard]] inline Reason suits_epilogue(const ActivationProblem& problem) {
  if (problem.activation != Activation::gelu_tanh) return "cuBLASLt has gelu_tanh alone";
  if (problem.dtype != DType::bf16 && problem.dtype != DType::f16) {
    return "cuBLASLt's gelu_tanh is too coarse for 32 bits";
  }
  if (problem.columns % 8 != 0 || !problem.is_pre_aligned) {
    return "rows are not a multiple of 16 bytes";
  }
  return {};
}

/// A recomputed activation must have the same bits, and the epilogue's comes from the sums in f32.
/// Few rows are no GEMM.
[[nodiscard]] inline Reason suits_epilogue_forward(const ActivationProblem& problem) {
  if (problem.deterministic) return "run.deterministic: a recomputed activation has other bits";
  if (problem.rows <= kMatrixVectorRows) return "few rows are no GEMM";
  return suits_epilogue(problem);
}

/// cuBLASLt may pass the GEMM's result through dpre before it reads pre.
[[nodiscard]] inline Reason suits_epilogue_backward(const ActivationProblem& problem) {
  if (problem.is_in_place) return "the gradient has the memory of the activation's input";
  return suits_epilogue(problem);
}

[[nodiscard]] inline Reason suits_blocks(const ActivationProblem& problem) {
  return problem.is_in_place ? Reason() : "the gradient has memory of its own";
}
[[nodiscard]] inline Reason suits_any(const ActivationProblem& /*problem*/) { return {}; }

decltype(ops::linear_activation_forward) epilogue_activation_forward, separate_activation_forward;
decltype(ops::linear_activation_backward_input) epilogue_activation_backward,
    blocked_activation_backward, separate_activation_backward;

using ActivationForwardKernel = Kernel<ActivationProblem, decltype(ops::linear_activation_forward)>;
inline constexpr std::array kActivationForward = {
    ActivationForwardKernel{"warpgroups", Needs::warpgroups, suits_warpgroups_forward,
                            launch_of<warpgroup_activation_forward>(),
                            "products/activation_product.cuh", "activation_product_kernel"},
    ActivationForwardKernel{"cuBLASLt with epilogue", Needs::any_gpu, suits_epilogue_forward,
                            launch_of<epilogue_activation_forward>()},
    ActivationForwardKernel{"a product, then the activation", Needs::any_gpu, suits_any,
                            launch_of<separate_activation_forward>()}};

using ActivationBackwardKernel =
    Kernel<ActivationProblem, decltype(ops::linear_activation_backward_input)>;
inline constexpr std::array kActivationBackward = {
    ActivationBackwardKernel{"warpgroups", Needs::warpgroups, suits_warpgroup_product,
                             launch_of<warpgroup_activation_backward>(),
                             "products/activation_product.cuh", "activation_product_kernel"},
    ActivationBackwardKernel{"cuBLASLt with epilogue", Needs::any_gpu, suits_epilogue_backward,
                             launch_of<epilogue_activation_backward>()},
    ActivationBackwardKernel{"cuBLASLt in blocks", Needs::any_gpu, suits_blocks,
                             launch_of<blocked_activation_backward>()},
    ActivationBackwardKernel{"a product, then the activation", Needs::any_gpu, suits_any,
                             launch_of<separate_activation_backward>()}};

}  // namespace hyperslab::ops::cuda
