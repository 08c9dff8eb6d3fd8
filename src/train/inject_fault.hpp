// SPDX-License-Identifier: Apache-2.0
// Faults on purpose (core/fault.hpp) in the numbers of a step.
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/presence.hpp"

namespace hyperslab::train {

/// Makes some of this rank's reduced gradients NaN if step.gradients asks for it.
void inject_gradient_fault(Context& ctx, const sharding::GradientSums& gradients);
/// Flips the highest bit of the fraction of one trained value, of its master if that is another
/// number, and of an FP8 value of every matrix that is gathered so, if step.parameters asks for it.
/// Waits for the device.
void inject_parameter_fault(Context& ctx, sharding::PresentValues& values,
                            const param::ParamStore& params);

}  // namespace hyperslab::train
