// SPDX-License-Identifier: Apache-2.0
// Runs that are looked at and not started, maybe for another device than this machine has.
#pragma once

#include "command.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::cli {

/// read_config(), but a deck that needs a GPU (fp16, run.device: cuda) if there is none is read
/// for one, and so is a plan's deck in bf16 that leaves run.device open; rank 0 says so in a line
/// on standard output. Then run.device is cuda.
[[nodiscard]] train::Config read_planned_config(comm::World& world, const DeckSource& source);

/// The device that the deck means here.
[[nodiscard]] Device planned_device(const train::Config& config);

/// Options of a trainer for plan::make_plan() on planned_device(); touches no GPU.
[[nodiscard]] train::TrainerOptions planned_options(const train::Config& config);

}  // namespace hyperslab::cli
