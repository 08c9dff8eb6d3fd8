// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops::cuda {

/// linear_activation_forward by Hopper's warpgroups, of operands that suits_warpgroup_product()
/// names. y has the bits of activation_forward of pre.
void warpgroup_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                                  Activation activation, View pre, View y);

/// linear_activation_backward_input by Hopper's warpgroups; dpre may have the memory of pre. Takes
/// activation_product_partials() bytes of the context's partials if dbias is asked for.
void warpgroup_activation_backward(Context& ctx, CView dy, CView weight, CView pre,
                                   Activation activation, const ActivationGradients& gradients);

}  // namespace hyperslab::ops::cuda
