// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/comm/world.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

class Trainer;

/// If the deck names checkpoint.initial: takes the parameters of that checkpoint, of any layout,
/// and nothing else, so that step 1 comes next with cleared moments. Collective over the world.
/// Throws Error(checkpoint), the same on all ranks: no such checkpoint, damaged, or of another
/// model.
void start_from_initial(comm::World& world, const Config& config, Trainer& trainer);

}  // namespace hyperslab::train
