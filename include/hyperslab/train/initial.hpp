// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

class Trainer;

/// If the deck names checkpoint.initial: takes the parameters of that checkpoint, of any layout,
/// and nothing else, so that step 1 comes next with cleared moments. With adapters these are the
/// base's, and the adapters stay as they are. A vision transformer's may be of another resolution,
/// see fit_resolution(). Collective over the world. Throws Error(checkpoint),
/// the same on all ranks: no such checkpoint, damaged, of another model, or adapters alone.
void start_from_initial(comm::World& world, const Config& config, Trainer& trainer);

/// Before a checkpoint is loaded: if the deck has adapters, start_from_initial for their base. So
/// a trainer holds the parameters that TrainerState::load does not give. `step`: of the base's
/// checkpoint, as the one that is loaded next names it; 0: the newest.
void load_base(comm::World& world, const Config& config, Trainer& trainer, std::int64_t step);

/// Throws Error(checkpoint) if the checkpoint holds adapters alone.
void require_whole_model(const io::CheckpointReader& reader);

/// Throws Error(checkpoint) unless the adapters that the checkpoint holds belong to the base whose
/// fingerprint is `found`; `base` is its path in the message, empty for random weights.
void require_base(const io::CheckpointReader& reader, std::uint64_t found, const std::string& base);

/// Before TrainerState::load: throws Error(checkpoint) unless the checkpoint holds the parameters
/// that a trainer of the deck loads: a whole model, or adapters of the base that the trainer holds.
void require_loadable(const io::CheckpointReader& reader, const Config& config,
                      const Trainer& trainer);

}  // namespace hyperslab::train
