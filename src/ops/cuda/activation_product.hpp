// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::cuda {

/// Whether warpgroup_activation_product takes these operands of linear_activation_backward_input on
/// the GPU in use: 16-bit elements in rows of whole 16 bytes, and enough of them to be faster.
[[nodiscard]] bool suits_activation_product(CView dy, CView weight, CView pre,
                                            const ActivationGradients& gradients);

/// linear_activation_backward_input by Hopper's warpgroups; dpre may have the memory of pre. Uses
/// activation_product_workspace() bytes of the context's workspace if dbias is asked for.
void warpgroup_activation_product(Context& ctx, CView dy, CView weight, CView pre,
                                  Activation activation, const ActivationGradients& gradients);

}  // namespace hyperslab::ops::cuda
