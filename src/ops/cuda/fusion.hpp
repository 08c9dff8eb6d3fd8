// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hyperslab/ops/matmul.hpp"
#include "quantized_workspace.hpp"

// Which ops put their activation into a GEMM of cuBLASLt. The same functions decide when the op
// runs and its row in the ledger on `meta`; they need no CUDA. Should cuBLASLt have no
// algorithm for an epilogue, the op computes the activation separately all the same. Kernels for
// Hopper (activation_product.hpp) fuse more than a plan says.

namespace hyperslab::ops::cuda {

inline constexpr const char* kFused = "fused";
inline constexpr const char* kSeparate = "separate";

/// cuBLASLt has the tanh approximation of GELU, too coarse for f32; aux needs 16-byte addresses.
[[nodiscard]] inline bool can_fuse_activation(Activation activation, CView aux, Dim columns) {
  const DType dtype = aux.dtype();
  return activation == Activation::gelu_tanh && (dtype == DType::bf16 || dtype == DType::f16) &&
         columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(aux.raw()) % 16 == 0;
}

/// A recomputed activation must have the same bits, and the epilogue's comes from the sums in f32.
/// Few rows are no GEMM.
[[nodiscard]] inline bool fuses_activation_forward(const Context& ctx, Activation activation,
                                                   CView pre, Dim columns) {
  return !ctx.deterministic() && pre.rows() > kMatrixVectorRows &&
         can_fuse_activation(activation, pre, columns);
}

/// cuBLASLt may pass the GEMM's result through dpre before it reads pre.
[[nodiscard]] inline bool fuses_activation_backward(Activation activation, CView pre, CView dpre,
                                                    Dim columns) {
  return pre.raw() != dpre.raw() && can_fuse_activation(activation, pre, columns);
}

}  // namespace hyperslab::ops::cuda
