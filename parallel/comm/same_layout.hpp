// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string>

#include "hyperslab/core/arena.hpp"

namespace hyperslab::comm {

/// Throws an internal Error on every member of `group` unless their arenas have the same size and
/// have handed out the same so far, by name, offset and bytes. It names the first allocation that
/// differs. Collective over the group.
void require_same_layout(MPI_Comm group, const std::string& communicator, const Arena& arena);

}  // namespace hyperslab::comm
