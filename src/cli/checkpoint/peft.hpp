// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::cli {

/// `checkpoint export` of a checkpoint that holds adapters: a folder of PEFT; one rank.
void export_adapters(const Arguments& args, const io::CheckpointReader& reader);
/// `checkpoint import` of a folder of PEFT: adapters of the checkpoint --base; one rank.
void import_adapters(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
