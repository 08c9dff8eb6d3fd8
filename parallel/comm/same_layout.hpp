// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string>

#include "hyperslab/core/arena.hpp"

namespace hyperslab::comm {

/// The difference between the arenas of the members of `group`: the first allocation that has
/// another name, offset or size on one of them, and how all have it. Empty if they have handed out
/// the same so far and have the same size. The same text on all members; collective over the group.
[[nodiscard]] std::string layout_difference(MPI_Comm group, const std::string& communicator,
                                            const Arena& arena);

}  // namespace hyperslab::comm
