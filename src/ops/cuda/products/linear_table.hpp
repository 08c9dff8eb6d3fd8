// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backend.hpp"
#include "cuda/tools/kernel_table.hpp"
#include "quantized_workspace.hpp"

// The kernels of a product with weights, y (+)= x weight^T + bias. Of few rows it reads every
// weight once and does little else.

namespace hyperslab::ops::cuda {

/// The parts of a call of linear_forward, or of a gated one, that decide who computes it.
struct LinearProblem {
  CView x;
  CView weight;
  bool accumulate = false;
  bool gated = false;
  /// Rows of x.
  [[nodiscard]] Dim rows() const { return x.numel() / std::max<Dim>(1, weight.shape()[1]); }
};

[[nodiscard]] inline Reason suits_few_rows(const LinearProblem& problem) {
  if (problem.accumulate) return "the product is added to others";
  if (problem.x.dtype() != DType::bf16 && problem.x.dtype() != DType::f16) {
    return "elements are not 16 bits wide";
  }
  if (problem.rows() > kMatrixVectorRows) return "more than 8 rows are a GEMM";
  if (problem.weight.shape()[1] % 8 != 0) return "rows are not a multiple of 16 bytes";
  if (!begin_at_16_bytes(problem.x, problem.weight)) {
    return "operands do not begin at multiples of 16 bytes";
  }
  return {};
}

/// At the speed of the memory, through a ring of shared memory that TMA fills.
[[nodiscard]] inline Reason suits_plain_rows(const LinearProblem& problem) {
  constexpr Dim kMost = Dim{1} << 30;
  const Dim M = problem.weight.shape()[0];
  const Dim K = problem.weight.shape()[1];
  if (M <= 0 || K <= 0 || M > kMost || 2 * K > kMost) return "a matrix of no or too many elements";
  if (problem.gated && M % 16 != 0) return "gates are not a multiple of 8";
  return suits_few_rows(problem);
}

[[nodiscard]] inline Reason suits_every_product(const LinearProblem& /*problem*/) { return {}; }

LinearForward linear_by_plain_rows, linear_by_few_rows, linear_by_library;

using LinearKernel = Kernel<LinearProblem, LinearForward>;
inline constexpr std::array kLinearForward = {
    LinearKernel{"plain rows", Needs::ring, suits_plain_rows, launch_of<linear_by_plain_rows>(),
                 "products/plain_rows.cu", "plain_rows_kernel"},
    LinearKernel{"few rows", Needs::any_gpu, suits_few_rows, launch_of<linear_by_few_rows>(),
                 "products/matrix_vector.cu", "few_rows_kernel"},
    LinearKernel{"cuBLASLt", Needs::any_gpu, suits_every_product, launch_of<linear_by_library>()}};

}  // namespace hyperslab::ops::cuda
