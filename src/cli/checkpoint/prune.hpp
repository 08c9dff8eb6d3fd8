// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

void add_prune_options(Arguments& args);
/// `checkpoint prune DIR --keep n`: removes older checkpoints of a run that is not running. One
/// rank.
void prune_checkpoints(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
