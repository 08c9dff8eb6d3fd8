// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {

/// Before MPI starts: takes HYPERSLAB_FAULT and reaches the first point. An error is returned, and
/// reported when ranks can agree on the one that reports it.
[[nodiscard]] std::optional<Error> set_faults();
/// Throws `wrong`, if there is an error; warns on rank 0 if a fault is set.
void begin_faults(const comm::World& world, const std::optional<Error>& wrong);

}  // namespace hyperslab::cli
