// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../command.hpp"

namespace hyperslab::cli {

/// bench --kernel-table: prints the kernels that a step of the deck takes on a GPU of compute
/// capability 9.0, where an op has several, and why the rows before them do not suit. Throws
/// Error(usage) if another mode than step is asked for.
[[nodiscard]] ExitCode run_kernel_table(comm::World& world, const Arguments& args);

}  // namespace hyperslab::cli
