// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command.hpp"

namespace hyperslab::cli {

/// Options of `checkpoint export` and `checkpoint import`.
void add_exchange_options(Arguments& args);
/// A checkpoint becomes a folder of another program; one rank.
void export_checkpoint(const Arguments& args);
/// A folder of another program becomes a checkpoint; one rank.
void import_checkpoint(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
