// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::cuda {

/// True if the two below take a product of `left` and `right` with so many columns on the GPU in
/// use: 16-bit elements in rows of whole 16 bytes, of `others` too, and enough of them to be
/// faster.
[[nodiscard]] bool suits_activation_product(CView left, CView right, Dim columns,
                                            std::initializer_list<CView> others);

/// Longer sums forward are cuBLASLt's, whose larger tiles then gain more than hiding the activation
/// (analysis/results/kernels-h200.txt).
inline constexpr Dim kDeepestActivationProduct = 1024;

/// linear_activation_forward by Hopper's warpgroups. y has the bits of activation_forward of pre.
void warpgroup_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                                  Activation activation, View pre, View y);

/// linear_activation_backward_input by Hopper's warpgroups; dpre may have the memory of pre. Takes
/// activation_product_partials() bytes of the context's partials if dbias is asked for.
void warpgroup_activation_backward(Context& ctx, CView dy, CView weight, CView pre,
                                   Activation activation, const ActivationGradients& gradients);

}  // namespace hyperslab::ops::cuda
