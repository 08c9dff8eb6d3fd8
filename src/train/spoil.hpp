// SPDX-License-Identifier: Apache-2.0
// Faults on purpose (core/fault.hpp) in the numbers of a step.
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/strategy.hpp"

namespace hyperslab::train {

/// Makes some of this rank's reduced gradients NaN if step.gradients asks for it.
void spoil_gradients(Context& ctx, const dp::ShardStrategy& strategy);
/// Flips the highest bit of the fraction of one trained value, of its master if that is another
/// number, and of a code of every matrix that is gathered as codes, if step.parameters asks for it.
/// Waits for the device.
void spoil_parameters(Context& ctx, dp::ShardStrategy& strategy, const param::ParamStore& params);

}  // namespace hyperslab::train
