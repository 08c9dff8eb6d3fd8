// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

/// Options of `checkpoint upcycle`.
void add_upcycle_options(Arguments& args);
/// `checkpoint upcycle`: every feed-forward network becomes equal experts; one rank.
void upcycle_checkpoint(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
